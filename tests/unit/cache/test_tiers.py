"""What holds for every tier alike: memory, disk, and Redis, which is a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest

from opsin.cache.disk import DiskTier
from opsin.cache.memory import MemoryTier
from opsin.cache.redis_link import RedisLink
from opsin.cache.redis_tier import RedisTier
from opsin.cache.seal import Seal
from opsin.cache.tier import Address, Tier, Value
from opsin.cache.tombstones import Tombstones
from opsin.core.erasure import PurgeOutcome
from tests.redis_server import PROGRAM, RedisServer, redis_server

QUOTA = 10_000
TTL_S = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer | None]:
    if PROGRAM is None:
        yield None
        return
    with redis_server() as running:
        yield running


@pytest.fixture
def tombstones() -> Tombstones:
    return Tombstones(60)


@pytest.fixture(params=["memory", "disk", "redis"])
async def tier(
    request: pytest.FixtureRequest, tmp_path: Path, server: RedisServer | None, tombstones: Tombstones
) -> AsyncGenerator[Tier]:
    seal = Seal(b"secret")
    match request.param:
        case "memory":
            yield MemoryTier(10 * QUOTA, QUOTA, tombstones)
        case "disk":
            disk = DiskTier(tmp_path, 10 * QUOTA, QUOTA, seal, tombstones)
            yield disk
            await disk.close()
        case _:
            if server is None:
                pytest.skip("redis-server is not installed")
            with server.client() as client:
                client.flushall()
            link = RedisLink(server.url, timeout_s=20)
            yield RedisTier(link, "t", QUOTA, TTL_S, seal, tombstones)
            await link.close()


def at(record: str, field: str = "f", scope: str = "one") -> Address:
    return Address(scope, record, field)


def value(size: int, letter: bytes = b"x") -> Value:
    return Value(b"h", letter * (size - 1))


async def present(tier: Tier, scope: str, *records: str) -> set[str]:
    return {record for record in records if await tier.get(at(record, scope=scope)) is not None}


async def test_what_is_put_is_found_in_its_own_scope_alone(tier: Tier) -> None:
    assert await tier.put(at("a"), value(9), TTL_S)
    assert await tier.put(at("a", "g"), value(5, b"y"), TTL_S)
    assert await tier.get(at("a")) == value(9)
    assert await tier.fields("one", "a") == {"f": value(9), "g": value(5, b"y")}
    assert await tier.get(at("a", scope="two")) is None
    assert await tier.get(at("b")) is None
    assert await tier.put(at("a"), value(7), TTL_S)
    assert await tier.get(at("a")) == value(7)


async def test_a_full_scope_loses_its_own_oldest_and_nobody_elses(tier: Tier) -> None:
    assert await tier.put(at("a", scope="two"), value(4000), TTL_S)
    for record in "abc":
        assert await tier.put(at(record), value(4000), TTL_S)
        await asyncio.sleep(0.002)
    assert await present(tier, "one", "a", "b", "c") == {"b", "c"}
    await present(tier, "one", "b")
    assert await tier.put(at("d"), value(4000), TTL_S)
    assert await present(tier, "one", "b", "c", "d") == {"b", "d"}
    assert not await tier.put(at("e"), value(QUOTA + 1), TTL_S)
    assert await present(tier, "two", "a") == {"a"}


async def test_a_purge_takes_a_picture_with_all_that_was_made_of_it(tier: Tier) -> None:
    for address in (at("a"), at("a", "g"), at("b"), at("a", scope="two")):
        await tier.put(address, value(5), TTL_S)
    assert await tier.purge("one", "a") is PurgeOutcome.ERASED
    assert await tier.fields("one", "a") == {}
    assert await present(tier, "one", "b") == {"b"}
    assert await tier.purge("one", "c") is PurgeOutcome.NONE
    assert await tier.purge("one", None) is PurgeOutcome.ERASED
    assert await present(tier, "one", "b") == set()
    assert await present(tier, "two", "a") == {"a"}
    assert await tier.purge("one", None) is PurgeOutcome.NONE


async def test_what_is_buried_is_not_kept_until_it_is_lifted(tier: Tier, tombstones: Tombstones) -> None:
    tombstones.bury("one", "a")
    assert not await tier.put(at("a"), value(5), TTL_S)
    assert await tier.put(at("b"), value(5), TTL_S)
    tombstones.lift("one", "a")
    assert await tier.put(at("a"), value(5), TTL_S)
    tombstones.bury("one", None)
    assert not await tier.put(at("c"), value(5), TTL_S)
    assert await tier.put(at("c", scope="two"), value(5), TTL_S)


async def test_a_dropped_field_makes_room(tier: Tier) -> None:
    await tier.put(at("a", "f"), value(4000), TTL_S)
    await tier.put(at("a", "g"), value(4000), TTL_S)
    await tier.drop(at("a", "f"))
    assert set(await tier.fields("one", "a")) == {"g"}
    assert await tier.put(at("b"), value(5000), TTL_S)
    assert await tier.get(at("a", "g")) is not None
    await tier.drop(at("a", "g"))
    assert await tier.purge("one", "a") is PurgeOutcome.NONE


async def test_nothing_is_found_when_its_time_is_over(tier: Tier) -> None:
    await tier.put(at("a"), value(QUOTA // 2), 0.05)
    await asyncio.sleep(0.1)
    assert await tier.get(at("a")) is None
    assert await tier.fields("one", "a") == {}


async def test_of_a_record_that_goes_on_what_has_ended_is_dropped(tier: Tier) -> None:
    """A list of files lives as long as its tenant uploads, and none of its entries does."""
    for number in range(5):
        assert await tier.put(at("list", f"old{number}"), value(1500), 0.02)
    await asyncio.sleep(0.03)
    assert await tier.put(at("list", "new"), value(9), TTL_S)
    assert await tier.fields("one", "list") == {"new": value(9)}
    assert await tier.put(at("list", "large"), value(QUOTA - 2000), TTL_S), "their room is free again"
