from __future__ import annotations

import asyncio

import pytest

from opsin.cache.flight import Flights


async def test_several_who_want_the_same_at_once_get_one_result() -> None:
    flights, made = Flights[int](), 0

    async def work() -> int:
        nonlocal made
        made += 1
        await asyncio.sleep(0.01)
        return made

    assert await asyncio.gather(*(flights.run("key", work) for _ in range(8))) == [1] * 8
    assert await flights.run("key", work) == 2


async def test_one_who_leaves_takes_it_from_nobody_and_the_last_one_ends_it() -> None:
    flights, ended, gate = Flights[int](), asyncio.Event(), asyncio.Event()

    async def work() -> int:
        try:
            await gate.wait()
            return 1
        except asyncio.CancelledError:
            ended.set()
            raise

    first, second = (asyncio.create_task(flights.run("key", work)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not ended.is_set()
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    await asyncio.wait_for(ended.wait(), 1)
    gate.set()
    assert await flights.run("key", work) == 1


async def test_a_failure_is_everyones_and_is_not_kept() -> None:
    flights = Flights[int]()

    async def fail() -> int:
        await asyncio.sleep(0)
        raise ValueError

    outcomes = await asyncio.gather(*(flights.run("key", fail) for _ in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ValueError] * 3

    async def work() -> int:
        return 2

    assert await flights.run("key", work) == 2
