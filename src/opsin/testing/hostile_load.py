"""Bad pictures from many clients at once: bombs, cut files, huge ones with an error at their end.

    python -m opsin.testing.hostile_load URL

posts them until it is ended, and ends by itself with an error when one is answered with anything but its refusal. Good
requests come from whoever measures.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import random
import struct
import sys
import time
import zlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from PIL import Image

from opsin.media import data_url
from opsin.testing.heavy_load import LARGE_SIDE, Latencies, load_from

NUM_CLIENTS = 32
_PNG = b"\x89PNG\r\n\x1a\n"
_TOO_SLOW = (422, "image_decode_timeout")
"""On a machine that has more to do."""


@dataclass(frozen=True, slots=True)
class BadPicture:
    """What must be answered with ``status`` and ``code``."""

    data: bytes
    status: int
    code: str

    def body(self) -> bytes:
        """A request with it."""
        return _body(self.data)


@dataclass(slots=True)
class GoodRequests:
    """How requests fared that had to succeed."""

    seconds: list[float] = field(default_factory=list[float])
    failures: list[str] = field(default_factory=list[str])
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    """At least one of them was."""

    @property
    def latencies(self) -> Latencies:
        return Latencies(tuple(sorted(self.seconds)))


def hostile_load(url: str) -> AbstractAsyncContextManager[None]:
    """Bad pictures from another process, from its first answer to the end of the block."""
    return load_from("opsin.testing.hostile_load", url)


@asynccontextmanager
async def good_requests(url: str) -> AsyncGenerator[GoodRequests]:
    """One good request after the other, to the end of the block and at least to the first answer."""
    outcome = GoodRequests()
    asking = asyncio.create_task(_ask_forever(url, outcome))
    try:
        yield outcome
        await outcome.answered.wait()
    finally:
        asking.cancel()
        await asyncio.wait({asking})
        if not asking.cancelled() and (error := asking.exception()):
            raise error


def bad_pictures() -> tuple[BadPicture, ...]:
    """One of each kind; what is huge stays below all limits and costs its worker seconds before it turns out bad."""
    noise = Image.frombytes("RGB", (1500, 1500), random.Random(1).randbytes(1500 * 1500 * 3))
    grey = Image.radial_gradient("L").resize((LARGE_SIDE, LARGE_SIDE))
    huge, large, small = _encoded(grey, "PNG"), _encoded(noise, "PNG"), _encoded(noise.resize((200, 200)), "JPEG")
    return (
        BadPicture(_of_size(20_000, 20_000), 413, "media_too_large"),
        BadPicture(_of_size(LARGE_SIDE, LARGE_SIDE), 422, "image_truncated"),
        BadPicture(huge[: len(huge) * 9 // 10], 422, "image_truncated"),
        BadPicture(_with_wrong_end(huge), 422, "image_undecodable"),
        BadPicture(large[: len(large) // 2], 422, "image_truncated"),
        BadPicture(small[: len(small) // 2], 422, "image_truncated"),
        BadPicture(random.Random(2).randbytes(200_000), 415, "unsupported_image_format"),
        BadPicture(b"<svg xmlns='http://www.w3.org/2000/svg'/>", 415, "unsupported_image_format"),
    )


def _of_size(width: int, height: int) -> bytes:
    """A PNG that declares a size and has one pixel."""
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return _PNG + header + _chunk(b"IDAT", zlib.compress(bytes(4))) + _chunk(b"IEND", b"")


def _with_wrong_end(png: bytes) -> bytes:
    """The same picture with a last row that is no zlib, under right checksums."""
    start = png.index(b"IDAT") + 4
    length = int.from_bytes(png[start - 8 : start - 4], "big")
    pixels = png[start : start + length]
    return png[: start - 8] + _chunk(b"IDAT", pixels[:-2000] + b"\xff" * 2000) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _encoded(picture: Image.Image, image_format: str) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, image_format)
    return buffer.getvalue()


def _body(picture: bytes) -> bytes:
    part = {"type": "image_url", "image_url": {"url": data_url.write("image/png", picture), "detail": "low"}}
    content = [part, {"type": "text", "text": "What is it?"}]
    return json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 4}).encode()


async def _ask_forever(url: str, outcome: GoodRequests) -> None:
    picture = _encoded(Image.radial_gradient("L").resize((96, 96)).convert("RGB"), "PNG")
    async with aiohttp.ClientSession() as http:
        while True:
            started = time.perf_counter()
            async with http.post(f"{url}/v1/chat/completions", data=_body(picture)) as response:
                answer = await response.text()
            outcome.seconds.append(time.perf_counter() - started)
            if response.status != 200:
                outcome.failures.append(answer)
            outcome.answered.set()


async def _post_forever(url: str) -> None:
    pictures = bad_pictures()
    bodies = [(picture, picture.body()) for picture in pictures]
    connector = aiohttp.TCPConnector(limit=NUM_CLIENTS)
    async with aiohttp.ClientSession(connector=connector) as http, asyncio.TaskGroup() as group:
        for number in range(NUM_CLIENTS):
            first = number % len(bodies)
            group.create_task(_client(http, url, bodies[first:] + bodies[:first]))


async def _client(http: aiohttp.ClientSession, url: str, bodies: Sequence[tuple[BadPicture, bytes]]) -> None:
    for number, (picture, body) in enumerate(itertools.cycle(bodies)):
        async with http.post(f"{url}/v1/chat/completions", data=io.BytesIO(body)) as response:
            answer = await response.json()
        seen = (response.status, answer.get("error", {}).get("code"))
        if seen not in ((picture.status, picture.code), _TOO_SLOW):
            raise RuntimeError(f"expected {picture.status} {picture.code}, got {seen[0]} {seen[1]}")
        if number == 0:
            sys.stdout.write("begun\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_post_forever(sys.argv[1]))
