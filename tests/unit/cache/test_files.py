"""Uploaded files at two gateways that share a Redis server: whole or gone, whoever does what at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from opsin.cache.files import FileShelf
from opsin.cache.keys import Scopes
from opsin.cache.redis_link import RedisLink
from opsin.cache.redis_tier import RedisTier
from opsin.cache.seal import Seal
from opsin.cache.tombstones import Tombstones
from opsin.core.erasure import PurgeOutcome
from opsin.core.errors import NotFound, Overloaded
from tests.redis_server import RedisServer, needs_redis, redis_server

pytestmark = needs_redis

SECRET = b"secret"
DIGESTS = ("a" * 64, "b" * 64)
QUOTA, TTL_S = 100_000, 60.0


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


def shelf(link: RedisLink) -> FileShelf:
    tier = RedisTier(link, "t", QUOTA, TTL_S, Seal(SECRET), Tombstones(ttl_s=0), evicts=False)
    return FileShelf(tier, Scopes(SECRET), quota_bytes=QUOTA, max_files=100, ttl_s=TTL_S)


async def change(shelf: FileShelf, scope: str, seed: random.Random) -> None:
    """One upload or deletion."""
    digest = seed.choice(DIGESTS)
    match seed.randrange(4):
        case 0 | 1:
            await shelf.add(scope, digest, digest.encode(), "p.png", None)
        case 2:
            for file in await shelf.all(scope):
                try:
                    await shelf.remove(scope, file.id)
                except NotFound:  # the other gateway was first
                    continue
        case _:
            assert await shelf.purge(scope, seed.choice((digest, None))) is not PurgeOutcome.UNREACHABLE


async def test_every_listed_file_is_whole_and_what_is_not_listed_is_gone(redis: RedisServer) -> None:
    seed = random.Random(1)
    links = [RedisLink(redis.url, timeout_s=20) for _ in range(2)]
    one, two = map(shelf, links)
    for turn in range(60):
        scope = f"scope-{turn}"
        await asyncio.gather(*(change(each, scope, seed) for each in (one, two) * 4))
        for file in await one.all(scope):
            assert await two.content(scope, file.id) == file.sha256.encode()
            await two.remove(scope, file.id)
        with redis.client() as client:
            assert client.keys(f"t:{{{scope}}}:r:*") == []
            assert int(client.get(f"t:{{{scope}}}:total") or 0) == 0
    for link in links:
        await link.close()


async def test_who_leaves_has_uploaded_a_whole_file(redis: RedisServer) -> None:
    link = RedisLink(redis.url, timeout_s=20)
    one, digest = shelf(link), DIGESTS[0]
    for turn in range(20):
        scope = f"left-{turn}"
        uploading = asyncio.create_task(one.add(scope, digest, b"picture", "p.png", None))
        await asyncio.sleep(turn / 5000)
        uploading.cancel()
        await asyncio.gather(uploading, return_exceptions=True)
        async with asyncio.timeout(20):
            while not (files := await one.all(scope)):  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.001)
        assert await one.content(scope, files[0].id) == b"picture"
        await one.remove(scope, files[0].id)
    await link.close()


async def test_a_gateway_that_was_killed_in_between_keeps_nobody_out_for_long(redis: RedisServer) -> None:
    link = RedisLink(redis.url, timeout_s=0.1)
    one = shelf(link)
    await one.add("held", DIGESTS[0], b"picture", "p.png", None)
    with redis.client() as client:
        client.set("t:{held}:lock", "of a gateway that is gone", px=500)
    assert await one.purge("held", None) is PurgeOutcome.ERASED
    with redis.client() as client:
        client.set("t:{held}:lock", "of one that does not end")
    with pytest.raises(Overloaded):
        await one.add("held", DIGESTS[0], b"picture", "p.png", None)
    assert await one.purge("held", None) is PurgeOutcome.UNREACHABLE
    await link.close()
