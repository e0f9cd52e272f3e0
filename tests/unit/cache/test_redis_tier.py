"""Whatever happens to Redis is a miss that ends soon, and never another picture."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator
from typing import TypeVar

import pytest

from opsin.cache.redis_link import RedisLink
from opsin.cache.redis_tier import RedisTier
from opsin.cache.seal import Seal
from opsin.cache.tier import Address, TierError, Value
from opsin.cache.tombstones import Tombstones
from opsin.core.erasure import PurgeOutcome
from tests.redis_server import RedisServer, needs_redis, redis_server

pytestmark = needs_redis
T = TypeVar("T")

AT = Address("scope", "record", "field")
PATIENT_S = 20.0
"""On a busy machine."""
VALUE = Value(b"head", b"a picture" * 100)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture
async def link(server: RedisServer) -> AsyncGenerator[RedisLink]:
    link = RedisLink(server.url, timeout_s=PATIENT_S)
    yield link
    await link.close()


async def eventually(tries: Iterable[Awaitable[T]]) -> T:
    for once in tries:
        try:
            return await once
        except TierError:
            await asyncio.sleep(0.05)
    raise AssertionError("it never came back")


def tier_of(link: RedisLink) -> RedisTier:
    return RedisTier(link, "t", 10_000, 60, Seal(b"secret"), Tombstones(60))


async def test_garbage_under_a_key_is_no_picture(server: RedisServer, link: RedisLink) -> None:
    tier = tier_of(link)
    other = Address("scope", "record", "other")
    await tier.put(AT, VALUE, 60)
    await tier.put(other, Value(b"", b"another picture"), 60)
    with server.client() as client:
        name = "t:{scope}:r:record"
        stored = client.hget(name, "other")
        assert isinstance(stored, bytes)
        for garbage in (b"", b"\x80\x04garbage", stored, b"x" * 500):  # a pickle, and a real one of another field
            client.hset(name, "field", garbage)  # pyright: ignore[reportArgumentType] its stub has only text
            with pytest.raises(TierError):
                await tier.get(AT)
        client.delete(name)
        client.set(name, "not even a hash")
        with pytest.raises(TierError, match="refused"):
            await tier.get(AT)


async def test_a_slow_server_costs_its_timeout_three_times_and_then_nothing(server: RedisServer) -> None:
    link = RedisLink(server.url, timeout_s=0.3)
    tier = tier_of(link)
    await eventually(tier.put(AT, VALUE, 60) for _ in range(100))
    os.kill(server.pid, signal.SIGSTOP)
    try:
        for _ in range(3):
            with pytest.raises(TierError, match="timeout"):
                await tier.get(AT)
        with pytest.raises(TierError, match="paused_after_failures"):
            await tier.get(AT)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert await eventually(tier.get(AT) for _ in range(1000)) == VALUE  # never what an earlier call asked for
    await link.close()


async def test_a_server_that_is_gone_and_comes_back(server: RedisServer, link: RedisLink) -> None:
    tier = tier_of(link)
    await tier.put(AT, VALUE, 60)
    server.stop()
    with pytest.raises(TierError, match="unreachable"):
        await tier.get(AT)
    server.start()
    assert await tier.get(AT) is None


async def test_a_full_server_is_no_entry(server: RedisServer, link: RedisLink) -> None:
    tier = tier_of(link)
    with server.client() as client:
        client.config_set("maxmemory", "100kb")
        client.config_set("maxmemory-policy", "noeviction")
    with pytest.raises(TierError, match="full"):
        await tier.put(AT, Value(b"", bytes(5000)), 60)
    assert await tier.get(AT) is None


async def test_a_full_server_deletes_all_the_same_and_is_still_asked(server: RedisServer, link: RedisLink) -> None:
    tier = tier_of(link)
    await tier.put(AT, VALUE, 60)
    with server.client() as client:
        client.config_set("maxmemory", "100kb")
        client.config_set("maxmemory-policy", "noeviction")
    for _ in range(4):
        with pytest.raises(TierError, match="full"):
            await tier.put(Address("scope", "another", "field"), VALUE, 60)
    assert await tier.get(AT) == VALUE, "what it cannot take says nothing of what it has"
    assert await tier.purge("scope", "record") is PurgeOutcome.ERASED
    assert await tier.get(AT) is None
    assert await tier.purge("scope", "unknown") is PurgeOutcome.NONE
    with server.client() as client:
        client.config_set("maxmemory", "100mb")
    assert not await tier.put(AT, VALUE, 60), "the tombstone is there too"
    assert not await tier.put(Address("scope", "unknown", "field"), VALUE, 60)


async def test_a_field_of_garbage_costs_no_other_one(server: RedisServer, link: RedisLink) -> None:
    tier = tier_of(link)
    await tier.put(AT, VALUE, 60)
    with server.client() as client:
        client.hset("t:{scope}:r:record", "strange", "garbage")
    assert await tier.fields("scope", "record") == {"field": VALUE}


async def test_the_servers_eviction_policy_is_looked_at(server: RedisServer, link: RedisLink) -> None:
    assert "no maxmemory" in (await link.policy_problem() or "")
    with server.client() as client:
        client.config_set("maxmemory", "100mb")
        assert await link.policy_problem() is None
        client.config_set("maxmemory-policy", "allkeys-lru")
    assert "allkeys-lru" in (await link.policy_problem() or "")


async def test_what_the_server_itself_says_is_passed_on_without_the_password(server: RedisServer) -> None:
    with server.client() as client:
        client.config_set("requirepass", "right")
        link = RedisLink(f"{server.url}?password=wrong-one", timeout_s=20)
        with pytest.raises(TierError) as caught:
            await link.command("PING")
        client.config_set("requirepass", "")
    assert "invalid username-password pair" in caught.value.reason
    assert "wrong-one" not in caught.value.reason
    await link.close()


async def test_a_replica_takes_no_writes(server: RedisServer, link: RedisLink) -> None:
    with server.client() as client:
        client.replicaof("127.0.0.1", "1")
        assert "name its primary" in (await link.policy_problem() or "")
        client.replicaof("NO", "ONE")


async def test_a_writer_that_dies_in_the_middle_leaves_nothing(server: RedisServer, link: RedisLink) -> None:
    """What a killed process has sent of a command is never run."""
    sealed = Seal(b"secret").sealed(AT, VALUE, 60)
    start = b"*4\r\n$4\r\nHSET\r\n$18\r\nt:{scope}:r:record\r\n$5\r\nfield\r\n$%d\r\n" % len(sealed)
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(server.url.removeprefix("unix://"))
        raw.sendall(start + sealed[: len(sealed) // 2])
    assert await tier_of(link).get(AT) is None
    with server.client() as client:
        assert client.keys("*") == []


async def test_a_server_that_speaks_nonsense_is_unreachable() -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"?!\r\n" * 10)
        writer.close()

    listening = await asyncio.start_server(nonsense, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    link = RedisLink(f"redis://127.0.0.1:{port}", timeout_s=PATIENT_S)
    with pytest.raises(TierError):
        await tier_of(link).get(AT)
    await link.close()
    listening.close()


async def test_a_tombstone_of_another_gateway_keeps_it_out(server: RedisServer, link: RedisLink) -> None:
    """The other one purges between this one's look at its own tombstones and its write."""
    mine, theirs = tier_of(link), tier_of(link)
    await theirs.purge("scope", "record")
    assert not await mine.put(AT, VALUE, 60)
    await theirs.lift("scope", "record")
    assert await mine.put(AT, VALUE, 60)
    await theirs.purge("scope", None)
    assert not await mine.put(AT, VALUE, 60)
