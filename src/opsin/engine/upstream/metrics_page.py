"""An upstream's ``/metrics``: how many requests wait there, and how long its stages took. Knows no request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from opsin.core.stages import Stage
from opsin.engine.api import StageSum
from opsin.engine.upstream.config import UpstreamConfig
from opsin.engine.upstream.session import open_session

MAX_BYTES = 4 * 2**20
"""vLLM's page has some 100 KB."""

_NUMBER = r"\d{1,18}(?:\.\d{1,18})?(?:e[+-]?\d{1,2})?"


async def fetch_page(config: UpstreamConfig) -> bytes:
    """The page as it is; empty where there is none."""
    timeout = aiohttp.ClientTimeout(total=2 * config.connect_timeout_s, sock_connect=config.connect_timeout_s)
    url = f"{config.url.removesuffix('/v1')}/metrics"
    try:
        async with (
            open_session(config) as session,
            session.get(url, timeout=timeout, allow_redirects=False) as response,
        ):
            return await _read(response.content) if response.status == 200 else b""
    except (aiohttp.ClientError, OSError):
        return b""


async def _read(content: aiohttp.StreamReader) -> bytes:
    page = bytearray()
    while len(page) < MAX_BYTES and (read := await content.readany()):
        page += read
    return bytes(page)


def total(page: bytes, name: str) -> float | None:
    """The sum of a metric's samples over all its labels; None where there is none."""
    samples = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? ({_NUMBER})(?=\s)", page.decode(errors="replace"), re.M)
    return sum(map(float, samples)) if samples else None


@dataclass(frozen=True, slots=True)
class _Reading:
    seconds: float
    requests: float


class StageHistograms:
    """What histograms of an engine gained since they were first read, over every restart of it.

    Of all its requests, whoever asked: a histogram does not tell one from another.
    """

    def __init__(self, source: str, names: Mapping[Stage, str]) -> None:
        self._source = source
        self._names = names
        self._last: dict[Stage, _Reading] = {}
        self._gained: dict[Stage, _Reading] = {}

    def take(self, page: bytes) -> None:
        """One more page; one that lacks a histogram changes nothing of it."""
        for stage, name in self._names.items():
            seconds, requests = total(page, f"{name}_sum"), total(page, f"{name}_count")
            if seconds is not None and requests is not None:
                self._add(stage, _Reading(seconds, requests))

    def sums(self) -> tuple[StageSum, ...]:
        """By stage, in the order of a request."""
        return tuple(
            StageSum(source=self._source, stage=stage, seconds=gained.seconds, requests=round(gained.requests))
            for stage, gained in self._gained.items()
        )

    def _add(self, stage: Stage, now: _Reading) -> None:
        last = self._last.get(stage, now)
        self._last[stage] = now
        if now.requests < last.requests:
            last = _Reading(0.0, 0.0)  # it was started anew, and counts from 0
        so_far = self._gained.get(stage, _Reading(0.0, 0.0))
        self._gained[stage] = _Reading(
            so_far.seconds + now.seconds - last.seconds, so_far.requests + now.requests - last.requests
        )
