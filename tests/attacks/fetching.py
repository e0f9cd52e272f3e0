"""A fetcher that takes 127.0.0.1 for public and nothing else of this machine, and what it may meet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from opsin.bench.lag import LagProbe
from opsin.core.errors import MediaError
from opsin.media.budget import ByteBudget
from opsin.media.dns import Lookup
from opsin.media.fetch import Fetcher
from opsin.media.fetch_config import FetchConfig
from opsin.testing.scripted_dns import ScriptedDns
from tests.corpus.pictures import encoded, scene

PNG = encoded(scene(), "png")

HOME = "127.0.0.1"
"""The one address that is open, as a public one would be."""
FOREIGN = "127.0.0.2"
"""Where canaries sit: an address that answers and must never be asked."""

DNS: Mapping[str, Sequence[Sequence[str]]] = {
    "img.example": [[HOME]],
    "a.cdn.example": [[HOME]],
    "internal.example": [[FOREIGN]],
    "mixed.example": [[HOME, FOREIGN]],
    "empty.example": [[]],
    "aaaa.example": [["::1"]],
}

PATIENT: dict[str, Any] = dict.fromkeys(
    ("dns_timeout_s", "connect_timeout_s", "first_byte_timeout_s", "total_timeout_s"), 60.0
)
"""Where no test states less: what is refused for another reason must not run out of time first on a busy machine."""

OPEN: dict[str, Any] = {
    "allowed_media_domains": ["img.example", "*.cdn.example", "internal.example", "mixed.example", "rebind.example"],
    "allow_plain_http": True,
    "allowed_private_networks": [f"{HOME}/32"],
    **PATIENT,
}


def fetcher(*ports: int, lookup: Lookup | None = None, max_image_bytes: int = 10 * 2**20, **fields: Any) -> Fetcher:
    """Under OPEN with some ports."""
    config = FetchConfig.model_validate({**OPEN, "allowed_ports": ports, **fields})
    return Fetcher(config, max_image_bytes, lookup or ScriptedDns(DNS))


async def fetch(fetching: Fetcher, url: str, budget: int = 2**30) -> bytes:
    """As a request would."""
    return await fetching.fetch(fetching.target(url), ByteBudget(budget))


async def refused(fetching: Fetcher, url: str, budget: int = 2**30) -> MediaError:
    """The error of a fetch that has to fail, checked for what no error may hold."""
    with pytest.raises(MediaError) as caught:
        await fetch(fetching, url, budget)
    error = caught.value
    assert error.status in (400, 413)
    assert not error.retryable
    for secret in (HOME, FOREIGN, "example", "/secret", "0x", "Errno", "Cannot connect"):
        assert secret not in error.message
    return error


class Clock:
    """Checks that something ends by a deadline + 10 %, on a machine whose event loop may be late for other reasons."""

    async def __aenter__(self) -> Clock:
        self._lag = LagProbe(time.monotonic_ns)
        self._probing = asyncio.create_task(self._lag.run())
        self._began = time.monotonic_ns()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._probing.cancel()

    async def check(self, deadline_s: float) -> None:
        """Not before the deadline, and not after it by more than a tenth and what the loop was late by itself."""
        elapsed_s = (time.monotonic_ns() - self._began) / 1e9
        await asyncio.sleep(0.03)  # for the probe to see what has just held the loop up, such as a garbage collection
        late_s = sum(self._lag.lags_us) / 1e6
        assert 0.95 * deadline_s <= elapsed_s <= 1.1 * deadline_s + late_s + 0.02, (elapsed_s, late_s)
