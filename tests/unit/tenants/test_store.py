"""Keys in a file and in a real Redis, and what a running server knows of them."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from opsin.core.errors import ConfigError
from opsin.tenants.key_file import KeyFile
from opsin.tenants.key_redis import KEYS, VERSION, RedisKeys
from opsin.tenants.keys import new_key
from opsin.tenants.redis import connect
from opsin.tenants.store import KeyRing, KeyStore, StoreUnreachable
from tests.redis_server import needs_redis, redis_server


@pytest.fixture(params=["file", pytest.param("redis", marks=needs_redis)])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[KeyStore]:
    if request.param == "file":
        yield KeyFile(tmp_path / "keys")
        return
    with redis_server() as server:
        keys = RedisKeys(connect(server.url))
        yield keys
        await keys.close()


def ring_of(store: KeyStore) -> KeyRing:
    """It asks each time: a second is long in a test."""
    return KeyRing(store, refresh_s=0.0)


async def test_a_running_server_sees_keys_come_and_go(store: KeyStore) -> None:
    first, kept = new_key("acme")
    await store.add(kept)
    ring = ring_of(store)
    await ring.load()
    assert await ring.find(first) == kept
    assert await ring.find(kept.digest) is None, "what is kept opens nothing"
    assert await ring.find("") is None
    second, rotated = new_key("acme", admin=True)
    before = await store.version()
    await store.add(rotated)
    assert await store.version() != before
    assert await ring.find(second) == rotated
    assert [key.id for key in await store.all()] in ([kept.id, rotated.id], sorted([kept.id, rotated.id]))
    assert await store.remove(kept.id) == kept
    assert await store.remove(kept.id) is None
    assert (await ring.find(first), await ring.find(second)) == (None, rotated)


async def test_a_key_expires_in_its_time(store: KeyStore) -> None:
    key, kept = new_key("acme", lifetime_s=60)
    await store.add(kept)
    now = float(kept.created)
    ring = KeyRing(store, clock=lambda: now, refresh_s=0.0)
    assert await ring.find(key) == kept
    now += 60
    assert await ring.find(key) is None


async def test_the_newest_key_is_the_tenants_last_that_opens(store: KeyStore) -> None:
    assert await store.newest("acme", 0.0) is None, "also before there is a store"
    made = [new_key(tenant, lifetime_s=60)[1] for tenant in ("acme", "acme", "other")]
    now = float(made[0].created)
    first, second, other = (key.model_copy(update={"created": int(now) + age}) for age, key in enumerate(made))
    first = first.model_copy(update={"expires": None})
    for key in (first, second, other):
        await store.add(key)
    assert (await store.newest("acme", now), await store.newest("other", now)) == (second, other)
    assert await store.newest("acme", now + 120) == first, "the second has expired"
    assert await store.newest("other", now + 120) is None


async def test_the_store_is_asked_once_in_its_time_however_many_ask(tmp_path: Path) -> None:
    class Counting(KeyFile):
        asked = 0

        async def version(self) -> object:
            self.asked += 1
            await asyncio.sleep(0)
            return await super().version()

    store = Counting(tmp_path / "keys")
    await store.add(new_key("acme")[1])
    ring = KeyRing(store, refresh_s=60.0)
    await asyncio.gather(*(ring.find("wrong") for _ in range(50)))
    assert store.asked == 1


async def test_a_file_is_its_owners_alone_and_whole_at_every_moment(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    store = KeyFile(path)
    await asyncio.gather(*(asyncio.to_thread(asyncio.run, store.add(new_key("acme")[1])) for _ in range(8)))
    assert len(await store.all()) == 8, "none of eight commands at once lost another's key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["keys"]  # noqa: PTH208 - a folder of one
    path.chmod(0o640)
    with pytest.raises(StoreUnreachable, match="chmod 600"):
        await store.all()


def test_what_a_killed_command_left_goes_with_the_next_one(tmp_path: Path) -> None:
    (tmp_path / ".keys-abcd1234").write_text("half")
    (tmp_path / ".keys.secret-abcd1234").write_text("of another program")
    asyncio.run(KeyFile(tmp_path / "keys").add(new_key("acme")[1]))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".keys.secret-abcd1234", "keys"]


async def test_a_file_that_breaks_or_goes_keeps_the_service_and_not_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    with pytest.raises(ConfigError, match=r"opsin keys create"):
        await KeyRing(KeyFile(path)).load()
    key, kept = new_key("acme")
    store = KeyFile(path)
    await store.add(kept)
    ring = ring_of(store)
    await ring.load()
    with path.open("a") as file:
        file.write('{"id": "12345678", "digest": "secret words"}\n')
    assert await ring.find(key) == kept
    assert "line 2 is no key" in caplog.text
    assert "secret words" not in caplog.text
    with pytest.raises(ConfigError, match="line 2 is no key"):
        await KeyRing(store).load()
    path.unlink()
    assert await ring.find(key) == kept


async def test_a_running_server_says_when_others_may_read_the_keys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    key, kept = new_key("acme")
    await KeyFile(path).add(kept)
    ring = ring_of(KeyFile(path))
    await ring.load()
    path.chmod(0o644)
    assert await ring.find(key) == kept
    assert "others may read or write it" in caplog.text


@needs_redis
async def test_redis_that_goes_keeps_the_service() -> None:
    with redis_server() as server:
        store = RedisKeys(connect(server.url))
        key, kept = new_key("acme")
        await store.add(kept)
        ring = ring_of(store)
        await ring.load()
        with server.client() as client:
            assert key.encode() not in b"".join(client.hvals(KEYS)), "the key itself is nowhere"  # pyright: ignore[reportArgumentType] sync
            client.hset(KEYS, "garbage", "no json")
            client.incr(VERSION)
        assert await ring.find(key) == kept
        with pytest.raises(StoreUnreachable, match="no key of opsin's"):
            await store.all()
        server.stop()
        assert await ring.find(key) == kept
        with pytest.raises(ConfigError, match="Redis does not answer"):
            await KeyRing(store).load()
        await store.close()
