from __future__ import annotations

import asyncio
import threading

import pytest

from opsin.media.blocking import BlockingCalls


async def test_results_and_errors_come_back() -> None:
    calls = BlockingCalls("test", 2)
    assert await calls.run(lambda: threading.current_thread().daemon)
    with pytest.raises(ZeroDivisionError):
        await calls.run(lambda: 1 // 0)


async def test_hung_calls_hold_up_neither_their_callers_nor_the_loops_executor() -> None:
    calls, released = BlockingCalls("test", 40), threading.Event()
    hung = [asyncio.create_task(calls.run(released.wait)) for _ in range(40)]
    await asyncio.sleep(0)
    assert await asyncio.to_thread(lambda: "at once") == "at once"
    for task in hung:
        task.cancel()
    await asyncio.wait(hung)
    assert all(task.cancelled() for task in hung)
    released.set()


async def test_a_place_is_free_only_when_its_call_has_really_ended() -> None:
    calls, released = BlockingCalls("test", 1), threading.Event()
    hung = asyncio.create_task(calls.run(released.wait))
    await asyncio.sleep(0)
    hung.cancel()
    await asyncio.wait({hung})
    waiting = asyncio.create_task(calls.run(lambda: "done"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    released.set()
    assert await waiting == "done"


def test_a_call_may_outlive_its_loop(recwarn: pytest.WarningsRecorder) -> None:
    released, ended = threading.Event(), threading.Event()

    def call() -> None:
        released.wait()
        ended.set()

    async def leave() -> None:
        task = asyncio.create_task(BlockingCalls("test", 1).run(call))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave())
    released.set()
    assert ended.wait(10)
