"""Redis full, hung, gone and garbled behind a gateway that serves: what clients are told, and that they are served."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from opsin.media import data_url
from opsin.tenants.key_file import KeyFile
from opsin.tenants.keys import Limits, new_key
from tests.corpus.pictures import encoded, scene
from tests.integration.gateways import Served, gateway
from tests.redis_server import RedisServer, needs_redis, redis_server

pytestmark = needs_redis


def picture(side: int) -> bytes:
    return encoded(scene(size=(side, side)), "PNG")


class Client:
    """One tenant's."""

    def __init__(self, served: Served, key: str) -> None:
        self._served = served
        self._headers = {"authorization": f"Bearer {key}"}

    async def chat(self, url: str) -> tuple[int, dict[str, Any]]:
        part = {"type": "image_url", "image_url": {"file_id": url} if url.startswith("file-") else {"url": url}}
        return await self.send("POST", "/v1/chat/completions", json={"messages": [{"role": "user", "content": [part]}]})

    async def ask(self, data: bytes) -> int:
        return (await self.chat(data_url.write("image/png", data)))[0]

    async def upload(self, data: bytes) -> tuple[int, dict[str, Any]]:
        form = aiohttp.FormData({"purpose": "vision"})
        form.add_field("file", data, filename="p.png")
        return await self.send("POST", "/v1/files", data=form)

    async def send(self, method: str, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        url = self._served.url + path
        async with self._served.http.request(method, url, headers=self._headers, **body) as response:
            await self._served.application.caches.store.written()
            return response.status, await response.json()


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with redis_server("--maxmemory", "50mb", "--maxmemory-policy", "noeviction") as server:
        yield server


@asynccontextmanager
async def client_of(redis: RedisServer, folder: Path) -> AsyncGenerator[Client]:
    key, kept = new_key("acme", limits=Limits(requests_per_minute=100_000))
    await KeyFile(folder / "keys").add(kept)
    settings = {"api_keys_file": str(folder / "keys")}
    async with gateway(gateway=settings, redis_url=redis.url, media={"render_workers": 1}) as served:
        yield Client(served, key)


async def test_a_full_redis_takes_no_file_and_gives_and_deletes_what_it_has(redis: RedisServer, tmp_path: Path) -> None:
    async with client_of(redis, tmp_path) as client:
        _, file = await client.upload(picture(40))
        with redis.client() as control:
            control.config_set("maxmemory", "100kb")
        assert await client.ask(picture(41)) == 200
        status, refused = await client.upload(picture(42))
        assert (status, refused["error"]["code"]) == (503, "files_unreachable")
        assert (await client.chat(file["id"]))[0] == 200
        status, gone = await client.send("DELETE", f"/v1/files/{file['id']}")
        assert (status, gone["tiers"]["redis"], gone["tiers"]["files"]) == (200, "erased", "erased")
        assert (await client.chat(file["id"]))[0] == 404


async def test_a_hung_redis_and_one_that_is_gone_cost_files_and_nothing_else(
    redis: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with client_of(redis, tmp_path) as client:
        _, file = await client.upload(picture(40))
        os.kill(redis.pid, signal.SIGSTOP)
        try:
            await _is_served_without_files(client, file["id"])
        finally:
            os.kill(redis.pid, signal.SIGCONT)
        await _until_told(caplog, "event=journal_cut_off", "event=journal_joined")
        redis.stop()
        await _is_served_without_files(client, file["id"])


async def _until_told(caplog: pytest.LogCaptureFixture, *events: str) -> None:
    async with asyncio.timeout(60):
        while not all(event in caplog.text for event in events):  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.05)


async def _is_served_without_files(client: Client, file_id: str) -> None:
    assert await client.ask(picture(41)) == 200
    for status, answer in (await client.chat(file_id), await client.upload(picture(42))):
        assert (status, answer["error"]["code"]) == (503, "files_unreachable")
    status, answer = await client.send("DELETE", f"/v1/media/{'0' * 64}")
    assert (status, answer["deleted"], answer["tiers"]["redis"]) == (200, False, "unreachable")


async def test_garbage_is_a_miss_and_of_a_list_costs_itself_alone(redis: RedisServer, tmp_path: Path) -> None:
    async with client_of(redis, tmp_path) as client:
        _, file = await client.upload(picture(40))
        assert await client.ask(picture(41)) == 200
        strange = f"file-{'1' * 32}"
        with redis.client() as control:
            for name in cast("Iterator[bytes]", control.scan_iter("opsin:c:*:r:*")):  # pyright: ignore[reportUnknownMemberType] its stub has none
                for field in cast("list[bytes]", control.hkeys(name.decode())):
                    control.hset(name.decode(), field.decode(), "garbage")
            (listed,) = cast("Iterator[bytes]", control.scan_iter("opsin:f:*:r:files"))  # pyright: ignore[reportUnknownMemberType]
            control.hset(listed.decode(), strange, "garbage")
        assert await client.ask(picture(41)) == 200
        status, files = await client.send("GET", "/v1/files")
        assert (status, [one["id"] for one in files["data"]]) == (200, [file["id"]])
        assert (await client.chat(file["id"]))[0] == 200
        assert (await client.chat(strange))[0] == 503
