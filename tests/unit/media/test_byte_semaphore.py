from __future__ import annotations

import asyncio

import pytest

from opsin.media.byte_semaphore import ByteSemaphore


class Holders:
    """Tasks that hold bytes until they are told to let go."""

    def __init__(self, semaphore: ByteSemaphore) -> None:
        self._budget = semaphore
        self._done: dict[str, asyncio.Event] = {}
        self.holding: list[str] = []

    async def begin(self, name: str, num_bytes: int) -> asyncio.Task[None]:
        self._done[name] = asyncio.Event()
        task = asyncio.create_task(self._hold(name, num_bytes))
        await settled()
        return task

    async def end(self, name: str) -> None:
        self._done[name].set()
        await settled()

    async def _hold(self, name: str, num_bytes: int) -> None:
        async with self._budget.hold(num_bytes):
            self.holding.append(name)
            await self._done[name].wait()
            self.holding.remove(name)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_bytes_are_handed_out_up_to_the_limit() -> None:
    semaphore = ByteSemaphore(100)
    holders = Holders(semaphore)
    for name, num_bytes in (("a", 60), ("b", 40), ("c", 1)):
        await holders.begin(name, num_bytes)
    assert (holders.holding, semaphore.held_bytes) == (["a", "b"], 100)
    await holders.end("a")
    assert (holders.holding, semaphore.held_bytes) == (["b", "c"], 41)


async def test_small_ones_do_not_overtake_a_large_one() -> None:
    holders = Holders(ByteSemaphore(100))
    for name, num_bytes in (("a", 60), ("large", 100), ("small", 1)):
        await holders.begin(name, num_bytes)
    assert holders.holding == ["a"]
    await holders.end("a")
    assert holders.holding == ["large"]
    await holders.end("large")
    assert holders.holding == ["small"]


async def test_more_than_there_is_means_all_of_it() -> None:
    semaphore = ByteSemaphore(100)
    async with semaphore.hold(1000):
        assert semaphore.held_bytes == 100
    assert semaphore.held_bytes == 0


async def test_who_gives_up_waiting_lets_those_behind_pass() -> None:
    semaphore = ByteSemaphore(100)
    holders = Holders(semaphore)
    await holders.begin("a", 60)
    impatient = await holders.begin("large", 100)
    await holders.begin("small", 40)
    impatient.cancel()
    await settled()
    assert (holders.holding, semaphore.held_bytes) == (["a", "small"], 100)


async def test_who_is_cancelled_in_its_own_turn_gives_the_bytes_back() -> None:
    semaphore = ByteSemaphore(100)
    holders = Holders(semaphore)
    async with semaphore.hold(100):
        waiting = await holders.begin("b", 100)
    assert semaphore.held_bytes == 100, "handed out, but the task has not run since"
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (holders.holding, semaphore.held_bytes) == ([], 0)


async def test_an_error_inside_gives_the_bytes_back() -> None:
    semaphore = ByteSemaphore(100)
    with pytest.raises(ValueError, match="inside"):
        async with semaphore.hold(70):
            raise ValueError("inside")
    assert semaphore.held_bytes == 0
