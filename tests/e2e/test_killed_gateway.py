"""kill -9 of a whole gateway in the middle of its writes, to a disk and to a Redis server, and what is left of it."""

from __future__ import annotations

import asyncio
import hashlib
import io
import random
import signal
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import aiohttp
import psutil
import pytest
from PIL import Image

from opsin.cache.seal import Seal
from opsin.cache.tier import Address
from opsin.testing.server_process import ServerProcess
from tests.corpus.pictures import encoded
from tests.redis_server import RedisServer, needs_redis, redis_server

KILLS_AFTER_S = (0.5, 0.9, 1.4)
PATIENCE_S = 60.0
SECRET = "5e" * 32
SIDE = 900
"""Of random pixels: 2.4 MB as PNG."""


def noise(seed: int) -> bytes:
    pixels = random.Random(seed).randbytes(SIDE * SIDE * 3)
    return encoded(Image.frombytes("RGB", (SIDE, SIDE), pixels), "png")


@dataclass
class Uploaded:
    """What was sent, and what the gateway has said yes to, over all of its lives."""

    pictures: list[bytes]
    kept: dict[str, bytes] = field(default_factory=dict[str, bytes])
    num_broken_off: int = 0

    async def upload_until_it_dies(self, http: aiohttp.ClientSession, url: str, number: int) -> None:
        for data in self.pictures[number::2] * 1000:
            form = aiohttp.FormData({"purpose": "vision"})
            form.add_field("file", io.BytesIO(data), filename="p.png")
            try:
                async with http.post(f"{url}/v1/files", data=form) as response:
                    answer = await response.json()
                    assert response.status in (200, 413), answer
            except (aiohttp.ClientError, ConnectionError):
                self.num_broken_off += 1
                return
            if response.status == 200:
                self.kept[answer["id"]] = data
            else:
                await self._make_room(http, url)

    async def _make_room(self, http: aiohttp.ClientSession, url: str) -> None:
        """Of a file that had its time; who dies meanwhile may have deleted it."""
        doomed = next(iter(self.kept))
        del self.kept[doomed]
        with suppress(aiohttp.ClientError, ConnectionError):
            async with http.delete(f"{url}/v1/files/{doomed}"):
                pass

    async def check(self, http: aiohttp.ClientSession, url: str) -> None:
        """All that was promised is there and as it was; whatever else is listed is whole."""
        async with http.get(f"{url}/v1/files") as response:
            listed = {one["id"]: one["sha256"] for one in (await response.json())["data"]}
        assert set(self.kept) <= set(listed)
        for file_id, digest in listed.items():
            async with http.get(f"{url}/v1/files/{file_id}/content") as response:
                data = await response.read()
                assert response.status == 200, data
            assert hashlib.sha256(data).hexdigest() == digest
            assert file_id not in self.kept or self.kept[file_id] == data


def sealed_on_disk(folder: Path) -> Iterator[tuple[Address, bytes]]:
    for path in folder.rglob("values/*/*/*"):
        yield Address(path.parent.parent.name, path.parent.name, path.name), path.read_bytes()


def sealed_in_redis(redis: RedisServer) -> Iterator[tuple[Address, bytes]]:
    with redis.client() as client:
        for key in cast("Iterator[bytes]", client.scan_iter("opsin:*:r:*")):  # pyright: ignore[reportUnknownMemberType] its stub has none
            scope, record = key.decode().split("{")[1].split("}:r:")
            stored = cast("dict[bytes, bytes]", client.hgetall(key.decode()))
            for name, value in stored.items():
                yield Address(scope, record, name.decode()), value


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def until_gone(processes: list[psutil.Process]) -> None:
    """Raises AssertionError for one that outlives its gateway."""
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE_S)
    assert not alive


@needs_redis
@pytest.mark.parametrize("place", ["disk", "redis"])
async def test_a_gateway_killed_while_it_writes_leaves_every_value_whole_or_absent(place: str, tmp_path: Path) -> None:
    cache, scratch, secret = tmp_path / "cache", tmp_path / "tmp", tmp_path / "secret"
    scratch.mkdir()
    secret.write_text(SECRET)
    secret.chmod(0o600)
    seal = Seal(hashlib.sha256(bytes.fromhex(SECRET)).digest())
    uploaded = Uploaded([noise(seed) for seed in range(4)])
    words = ["--engine", "fake", "--server-secret-file", str(secret), "--cache-dir", str(cache)]
    async with AsyncExitStack() as stack:
        redis = stack.enter_context(redis_server())
        words += ["--redis-url", redis.url] if place == "redis" else []
        http = await stack.enter_async_context(aiohttp.ClientSession())
        for kill_after_s in (*KILLS_AFTER_S, None):
            with ServerProcess(*words, environment={"TMPDIR": str(scratch)}) as process:
                url = await asyncio.to_thread(process.until_ready)
                assert [path for path in cache.rglob("half-written/*") if path.is_file()] == []
                await uploaded.check(http, url)
                if kill_after_s is None:
                    break
                uploading = [asyncio.create_task(uploaded.upload_until_it_dies(http, url, one)) for one in range(2)]
                began, known = time.monotonic(), len(uploaded.kept)
                while time.monotonic() < began + PATIENCE_S and len(uploaded.kept) == known:  # noqa: ASYNC110 - nobody is told
                    await asyncio.sleep(0.01)
                await asyncio.sleep(kill_after_s)
                children = process.gateway().children(recursive=True)
                process.signal(signal.SIGKILL)
                await asyncio.gather(*uploading)
                await asyncio.to_thread(until_gone, children)
            stored = [*sealed_on_disk(cache), *sealed_in_redis(redis)]
            assert stored
            for at, value in stored:
                seal.opened(at, value)  # raises for what is torn
        assert uploaded.num_broken_off >= len(KILLS_AFTER_S)
        assert left_in(scratch) == []
        assert left_in(tmp_path) == ["cache", "secret", "tmp"]
