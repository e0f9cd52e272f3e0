"""Counters of the last minute: in memory and in a real Redis, alone and shared."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from os import kill

import pytest
from hypothesis import given
from hypothesis import strategies as st
from limits.aio.storage import MemoryStorage

from opsin.core.errors import RateLimited
from opsin.tenants import quota
from opsin.tenants.quota import Meter, Quotas, SharedQuotas, Window, WindowQuotas
from opsin.tenants.redis import connect
from tests.redis_server import RedisServer, needs_redis, redis_server
from tests.tries import tried

TOKENS = Meter.IMAGE_TOKENS


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(params=["memory", pytest.param("redis", marks=needs_redis)])
async def quotas(request: pytest.FixtureRequest) -> AsyncIterator[Quotas]:
    if request.param == "memory":
        yield WindowQuotas(MemoryStorage())
        return
    server: RedisServer = request.getfixturevalue("redis")
    with server.client() as client:
        client.flushall()
    shared = SharedQuotas(connect(server.url))
    yield shared
    await shared.close()


async def test_all_of_it_or_nothing_and_each_tenant_its_own(quotas: Quotas) -> None:
    reading = await quotas.charge("a", TOKENS, 1000, 900)
    assert (reading.limit, reading.remaining) == (1000, 100)
    assert 0 < reading.reset_s <= 120
    with pytest.raises(RateLimited, match=r"900 .* 101 more .* 1000 \(image_tokens_per_minute\)") as caught:
        await quotas.charge("a", TOKENS, 1000, 101)
    assert (caught.value.status, caught.value.retryable) == (429, True)
    assert 1 <= (caught.value.retry_after_s or 0) <= 120
    assert (await quotas.check("a", TOKENS, 1000, 100)).remaining == 100, "nothing was taken, by neither"
    assert (await quotas.charge("a", TOKENS, 1000, 100)).remaining == 0
    with pytest.raises(RateLimited):
        await quotas.check("a", TOKENS, 1000, 1)
    lower = await quotas.read("a", TOKENS, 300)
    assert (lower.limit, lower.remaining) == (300, 0), "another key's limit, and more was used"
    assert (await quotas.charge("b", TOKENS, 1000, 1000)).remaining == 0
    assert (await quotas.charge("a", Meter.REQUESTS, 5, 1)).remaining == 4
    assert (await quotas.check("a", TOKENS, 3000, 1)).remaining == 2000, "another key's limit, the same counter"


async def test_no_more_than_the_limit_by_many_at_once(quotas: Quotas) -> None:
    ended = await asyncio.gather(*(quotas.charge("a", TOKENS, 100, 9) for _ in range(50)), return_exceptions=True)
    assert sum(not isinstance(one, RateLimited) for one in ended) == 11


@given(st.integers(0, 50), st.floats(0, 60), st.integers(0, 50), st.floats(60, 120), st.integers(0, 50))
def test_after_the_wait_there_is_room_and_a_moment_before_there_is_not(
    previous: int, previous_s: float, current: int, current_s: float, allowed: int
) -> None:
    """By the counter's own arithmetic, moved on in time; ``previous_s`` and ``current_s`` are of one window."""
    window = Window(previous, current_s - 60 if current else previous_s, current, current_s)
    wait_s = window.wait_s(allowed)

    def used_after(seconds: float) -> float:
        left_s = window.current_s - 60 if current else window.previous_s
        if seconds <= left_s:
            return previous * (left_s - seconds) / 60 + current
        return current * max(0.0, 60 - (seconds - left_s)) / 60

    assert used_after(wait_s + 1e-6) <= allowed + 1e-6
    if wait_s > 0.1:
        assert used_after(wait_s - 0.1) > allowed


@needs_redis
async def test_gateways_share_a_counter_and_count_alone_while_redis_is_slow_or_gone() -> None:
    with redis_server() as server:
        one, other = SharedQuotas(connect(server.url)), SharedQuotas(connect(server.url))
        await one.charge("a", TOKENS, 100, 60)
        with pytest.raises(RateLimited):
            await other.charge("a", TOKENS, 100, 60)
        kill(server.pid, signal.SIGSTOP)
        began = time.monotonic()
        await one.charge("a", TOKENS, 100, 60)
        assert time.monotonic() - began < 5, "one that waits, and not for long"
        with pytest.raises(RateLimited):
            await one.charge("a", TOKENS, 100, 60)  # by its own counter, and nobody asks Redis meanwhile
        kill(server.pid, signal.SIGCONT)
        server.stop()
        await other.check("a", TOKENS, 100, 100)
        await one.close()
        await other.close()


@needs_redis
@tried
async def test_while_redis_hangs_one_at_a_time_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "_RETRY_REDIS_S", 0.1)
    with redis_server() as server:
        quotas = SharedQuotas(connect(server.url))

        async def charged_s() -> float:
            began = time.monotonic()
            await quotas.charge("a", TOKENS, 100, 1)
            return time.monotonic() - began

        kill(server.pid, signal.SIGSTOP)
        try:
            await charged_s()
            await asyncio.sleep(0.1)
            waits_s = sorted(await asyncio.gather(*(charged_s() for _ in range(5))))
        finally:
            kill(server.pid, signal.SIGCONT)
        assert waits_s[-1] > 0.9
        assert waits_s[-2] < 0.5
        await asyncio.sleep(0.1)
        await charged_s()
        with server.client() as client:
            (counter,) = client.keys("opsin:limits:*")
            assert int(client.get(counter) or 0) >= 1
        await quotas.close()


@needs_redis
@pytest.mark.parametrize("garbage", [b"garbage", None])
async def test_what_is_no_counter_in_redis_is_counted_here(garbage: bytes | None) -> None:
    with redis_server() as server, server.client() as client:
        quotas = SharedQuotas(connect(server.url))
        await quotas.charge("a", TOKENS, 100, 60)
        (counter,) = client.keys("opsin:limits:*")
        if garbage is None:
            client.delete(counter)
            client.hset(counter, "a", "b")
        else:
            client.set(counter, garbage)
        assert (await quotas.charge("a", TOKENS, 100, 60)).remaining == 40
        await quotas.close()
