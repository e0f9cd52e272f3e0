"""The heaviest requests that the default limits accept, and probes of what they do to everyone else.

    python -m opsin.testing.heavy_load URL

posts bodies of 32 MiB and pictures of 25 Mpx from four clients until it is ended. In a process of its own, so that it
shares nothing with the probes but the machine.
"""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
import json
import random
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp
from PIL import Image

from opsin.media import data_url

NUM_CLIENTS = 4
BODY_PICTURES, BODY_PICTURE_SIDE = 3, 1620
"""Three pictures of noise, 7.9 MB each, are 31.5 MB of base64: just under both limits, 10 MiB and 32 MiB."""
LARGE_SIDE = 5000
"""25 Mpx, the limit."""
_MARK = b"never drawn!"
"""Behind the end of each picture's file, where it changes the hash and nothing else. Its length is a multiple of 3, so
that it has characters of base64 of its own."""
_GET = b"GET /health HTTP/1.1\r\nHost: probe\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of some probes, in seconds, in order of size."""

    sorted_s: tuple[float, ...]

    def quantile_s(self, share: float) -> float:
        """The nearest-rank quantile: at least ``share`` of the probes took no longer."""
        return self.sorted_s[max(0, -(-len(self.sorted_s) * round(share * 1000) // 1000) - 1)]

    def __str__(self) -> str:
        figures = {"p50": self.quantile_s(0.5), "p99": self.quantile_s(0.99), "max": self.sorted_s[-1]}
        told = ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in figures.items())
        return f"{len(self.sorted_s)} probes: {told}"


async def probe(url: str, count: int, pause_s: float) -> Latencies:
    """``/health`` over one kept connection, again and again."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    latencies_s: list[float] = []
    for _ in range(count):
        started = time.perf_counter()
        writer.write(_GET)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
        latencies_s.append(time.perf_counter() - started)
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise ConnectionError(head.decode())
        await asyncio.sleep(pause_s)
    writer.close()
    return Latencies(tuple(sorted(latencies_s)))


def heavy_load(url: str) -> AbstractAsyncContextManager[None]:
    """The heaviest requests from another process, from their first answer to the end of the block."""
    return load_from("opsin.testing.heavy_load", url)


@asynccontextmanager
async def load_from(module: str, url: str) -> AsyncGenerator[None]:
    """Load from a program, which writes a line when it has begun, to the end of the block. Raises RuntimeError when it
    ended before."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, url, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        if not await process.stdout.readline():
            raise RuntimeError("the load ended before it began")
        yield
        if process.returncode is not None:
            raise RuntimeError("the load ended before its time")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class HeavyBody:
    """A request whose pictures are new every time, as far as any cache can tell."""

    def __init__(self, pictures: Sequence[bytes]) -> None:
        urls = [data_url.write("image/png", picture + bytes(-len(picture) % 3) + _MARK) for picture in pictures]
        parts: list[dict[str, object]] = [
            {"type": "image_url", "image_url": {"url": url, "detail": "low"}} for url in urls
        ]
        content = [*parts, {"type": "text", "text": "What is it?"}]
        body = json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 4}).encode()
        self._pieces = body.split(base64.b64encode(_MARK))

    def fresh(self) -> bytes:
        """The body with pictures that nobody has seen."""
        return base64.b64encode(random.randbytes(len(_MARK))).join(self._pieces)


def heavy_bodies() -> tuple[HeavyBody, HeavyBody]:
    """A body of 32 MiB with several pictures, and one with a picture of 25 Mpx."""
    noise = random.Random(1).randbytes(BODY_PICTURE_SIDE**2 * 3)
    noisy = _png(Image.frombytes("RGB", (BODY_PICTURE_SIDE, BODY_PICTURE_SIDE), noise))
    grey = Image.radial_gradient("L").resize((LARGE_SIDE, LARGE_SIDE))
    return HeavyBody([noisy] * BODY_PICTURES), HeavyBody([_png(Image.merge("RGB", (grey, grey, grey)))])


def _png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


async def _post_forever(url: str) -> None:
    bodies = heavy_bodies()
    async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as group:
        for number in range(NUM_CLIENTS):
            group.create_task(_client(http, url, bodies[number % 2 :] + bodies[: number % 2]))


async def _client(http: aiohttp.ClientSession, url: str, bodies: Sequence[HeavyBody]) -> None:
    for number in itertools.count():
        body = io.BytesIO(bodies[number % len(bodies)].fresh())
        async with http.post(f"{url}/v1/chat/completions", data=body) as response:
            answer = await response.read()
            if response.status != 200:
                raise RuntimeError(answer.decode())
        if number == 0:
            sys.stdout.write("begun\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_post_forever(sys.argv[1]))
