"""What the caches had of a request's pictures, as a header for a client that asks.

An RFC 9651 list, one integer per picture in order, the outcomes as its parameters:
``0;key="3fa94c0d5e6b7a81";media=hit-disk;render=miss;features=miss``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HEADER = "x-opsin-cache"
"""Of the request, where ``1`` asks, and of the response."""

_KEY_CHARS = 16


@dataclass(frozen=True, slots=True)
class CacheFindings:
    """What was found of one picture. Outcomes are ``miss``, ``hit``, or ``hit-`` and a tier; None where nobody looked.

    ``record`` names the picture within its scope; without the server's secret nobody can compute it.
    """

    record: str
    media: str | None
    render: str | None
    features: str

    def item(self, index: int) -> str:
        """A member of the list."""
        outcomes = {"media": self.media, "render": self.render, "features": self.features}
        told = (f";{name}={outcome}" for name, outcome in outcomes.items() if outcome is not None)
        return f'{index};key="{self.record[:_KEY_CHARS]}"{"".join(told)}'


def cache_header(asked: str | None, pictures: Sequence[CacheFindings]) -> dict[str, str]:
    """The header, if the request's own asks and there are pictures."""
    if asked != "1" or not pictures:
        return {}
    return {HEADER: ", ".join(one.item(index) for index, one in enumerate(pictures))}
