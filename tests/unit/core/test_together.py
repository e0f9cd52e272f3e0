from __future__ import annotations

import asyncio

import pytest

from opsin.core.together import together


async def _later(value: int, seconds: float) -> int:
    await asyncio.sleep(seconds)
    return value


async def test_results_in_order() -> None:
    assert await together([_later(1, 0.02), _later(2, 0)]) == (1, 2)


async def test_the_first_failure_ends_the_rest_and_is_itself() -> None:
    cancelled = asyncio.Event()

    async def waits() -> int:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return 0

    async def fails() -> int:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await together([waits(), fails()])
    assert cancelled.is_set()


async def test_one_alone_runs_in_the_task_of_who_waits() -> None:
    async def whose() -> asyncio.Task[object] | None:
        return asyncio.current_task()

    assert await together([whose()]) == (asyncio.current_task(),)
    assert not await together(())
