"""Reads a request body under a byte limit, counted as it arrives."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request

from opsin.core.errors import BodyTooLarge, BodyTooSlow, Code, InvalidRequest

_LONG_JOIN_BYTES = 2 * 2**20
"""From here on chunks are joined beside the event loop: 32 MiB took it 20 to 40 ms, and Python lets go of its lock."""


_SLOW_START_S = 5.0
"""So long a body may stay under the least rate."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """``min_bytes_per_s`` 0 is no least rate; ``setting`` is what ``max_bytes`` comes from."""

    max_bytes: int
    setting: str
    timeout_s: float
    min_bytes_per_s: int


async def read_body(request: Request, limits: BodyLimits) -> bytes:
    """Returns the body. Raises as ``stream_body``."""
    chunks: list[bytes] = []
    await stream_body(request, limits, chunks.append)
    size = sum(map(len, chunks))
    return await asyncio.to_thread(b"".join, chunks) if size >= _LONG_JOIN_BYTES else b"".join(chunks)


async def stream_body(request: Request, limits: BodyLimits, take: Callable[[bytes], None]) -> None:
    """Hands the body to ``take`` as it arrives.

    Raises:
        BodyTooLarge: announced or actual length over ``max_bytes``; nothing more is read.
        BodyTooSlow: not complete after ``timeout_s``, or slower than ``min_bytes_per_s``.
        InvalidRequest: a compressed body.
        Exception: whatever ``take`` raises; nothing more is read.
    """
    if any(encoding.lower() != "identity" for encoding in request.headers.getlist("content-encoding")):
        raise InvalidRequest("compressed request bodies are not accepted", code=Code.UNSUPPORTED_CONTENT_ENCODING)
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limits.max_bytes:
        raise _too_large(limits)
    began = asyncio.get_running_loop().time()
    end = began + limits.timeout_s

    def due(num_bytes: int) -> float:
        """Each byte buys time, so that many clients with a byte now and then cannot hold all places for long."""
        slow_s = num_bytes / limits.min_bytes_per_s if limits.min_bytes_per_s else math.inf
        return min(end, began + _SLOW_START_S + slow_s)

    clock, size = asyncio.timeout_at(due(0)), 0
    try:
        async with clock:
            async for chunk in request.stream():
                if not chunk:  # nothing follows
                    continue
                size += len(chunk)
                if size > limits.max_bytes:
                    raise _too_large(limits)
                take(chunk)
                clock.reschedule(due(size))
    except TimeoutError:
        if clock.when() == end:
            why = f"was not complete after {limits.timeout_s:g} s (body_timeout_s)"
        else:
            why = f"comes more slowly than {limits.min_bytes_per_s} bytes per second (min_body_bytes_per_s)"
        raise BodyTooSlow(f"the request body {why}") from None


def _too_large(limits: BodyLimits) -> BodyTooLarge:
    return BodyTooLarge(f"the request body is larger than {limits.max_bytes} bytes ({limits.setting})")
