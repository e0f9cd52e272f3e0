"""Reads a request body under a byte limit, counted as it arrives."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request

from opsin.core.errors import BodyTooLarge, BodyTooSlow, Code, InvalidRequest
from opsin.gateway.receive_into import ReceiveInto, receive_into

_LEAST_BYTES = 64 * 2**10
_GROWTH = 16
"""Memory for a body is taken for so many times of what has come: a length alone is quickly announced. The first read
brings up to 250 KB, so that most pictures then need no second step, and what is copied in a step is a sixteenth."""

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


async def read_body(request: Request, limits: BodyLimits) -> bytes | bytearray:
    """Returns the body. Raises as ``stream_body``."""
    if (read_rest := receive_into(request.scope)) is not None:
        return await _read_directly(request, limits, read_rest)
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
        ClientDisconnect: the client left.
        Exception: whatever ``take`` raises; nothing more is read.
    """
    _check_head(request, limits)
    async with _counted(limits) as count:
        async for chunk in request.stream():
            if not chunk:  # nothing follows
                continue
            count(len(chunk))
            take(chunk)


async def _read_directly(request: Request, limits: BodyLimits, read_rest: ReceiveInto) -> bytearray:
    announced = _check_head(request, limits)
    async with _counted(limits) as count:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body = bytearray(message["body"])
        count(len(body))
        while (size := len(body)) < announced:
            memory = bytearray(min(announced, max(_LEAST_BYTES, _GROWTH * size)))
            memory[:size] = body
            await read_rest(memoryview(memory)[size:], count)
            body = memory
    return body


def _check_head(request: Request, limits: BodyLimits) -> int:
    """Returns the announced length, 0 without one."""
    if any(encoding.lower() != "identity" for encoding in request.headers.getlist("content-encoding")):
        raise InvalidRequest("compressed request bodies are not accepted", code=Code.UNSUPPORTED_CONTENT_ENCODING)
    announced = request.headers.get("content-length", "").strip()  # the parser leaves what stands behind it
    num_bytes = int(announced) if announced.isdigit() else 0
    if num_bytes > limits.max_bytes:
        raise _too_large(limits)
    return num_bytes


@asynccontextmanager
async def _counted(limits: BodyLimits) -> AsyncGenerator[Callable[[int], None]]:
    """A block in which a body has to arrive; it is told of each piece how many bytes it has."""
    began = asyncio.get_running_loop().time()
    end = began + limits.timeout_s

    def due(num_bytes: int) -> float:
        """Each byte buys time, so that many clients with a byte now and then cannot hold all places for long."""
        slow_s = num_bytes / limits.min_bytes_per_s if limits.min_bytes_per_s else math.inf
        return min(end, began + _SLOW_START_S + slow_s)

    clock, size = asyncio.timeout_at(due(0)), 0

    def count(num_bytes: int) -> None:
        nonlocal size
        size += num_bytes
        if size > limits.max_bytes:
            raise _too_large(limits)
        clock.reschedule(due(size))

    try:
        async with clock:
            yield count
    except TimeoutError:
        if clock.when() == end:
            why = f"was not complete after {limits.timeout_s:g} s (body_timeout_s)"
        else:
            why = f"comes more slowly than {limits.min_bytes_per_s} bytes per second (min_body_bytes_per_s)"
        raise BodyTooSlow(f"the request body {why}") from None


def _too_large(limits: BodyLimits) -> BodyTooLarge:
    return BodyTooLarge(f"the request body is larger than {limits.max_bytes} bytes ({limits.setting})")
