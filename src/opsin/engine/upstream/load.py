"""Asks an upstream's ``/metrics`` how many requests wait. Knows no request."""

from __future__ import annotations

import re

import aiohttp

from opsin.engine.upstream.config import UpstreamConfig
from opsin.engine.upstream.session import open_session

MAX_BYTES = 4 * 2**20
"""vLLM's page has some 100 KB."""


async def fetch_waiting(config: UpstreamConfig, gauge: str) -> int:
    """Requests that the upstream lets wait, over all its labels; 0 where it does not tell."""
    timeout = aiohttp.ClientTimeout(total=2 * config.connect_timeout_s, sock_connect=config.connect_timeout_s)
    url = f"{config.url.removesuffix('/v1')}/metrics"
    try:
        async with (
            open_session(config) as session,
            session.get(url, timeout=timeout, allow_redirects=False) as response,
        ):
            return waiting_in(await _read(response.content), gauge) if response.status == 200 else 0
    except (aiohttp.ClientError, OSError):
        return 0


async def _read(content: aiohttp.StreamReader) -> bytes:
    page = bytearray()
    while len(page) < MAX_BYTES and (read := await content.readany()):
        page += read
    return bytes(page)


def waiting_in(page: bytes, gauge: str) -> int:
    """The sum of the gauge's samples on a page of Prometheus metrics."""
    samples = re.findall(rf"^{re.escape(gauge)}(?:\{{.*\}})? ([0-9.e+]+)", page.decode(errors="replace"), re.M)
    return round(sum(map(float, samples)))
