"""What a tenant has left, in the headers that clients of OpenAI know."""

from __future__ import annotations

from collections.abc import Sequence

from opsin.tenants.quota import Meter, Reading

NAMES = tuple(f"x-ratelimit-{what}-{meter}" for meter in Meter for what in ("limit", "remaining", "reset"))
"""All that there can be."""


def rate_headers(readings: Sequence[Reading]) -> dict[str, str]:
    """Limit, rest, and the time until all of it would be free again, of each meter; as OpenAI writes it, ``12.5s``."""
    headers: dict[str, str] = {}
    for reading in readings:
        headers[f"x-ratelimit-limit-{reading.meter}"] = str(reading.limit)
        headers[f"x-ratelimit-remaining-{reading.meter}"] = str(reading.remaining)
        headers[f"x-ratelimit-reset-{reading.meter}"] = f"{round(reading.reset_s, 3):g}s"
    return headers
