from __future__ import annotations

import asyncio
import os
import signal
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from opsin.background import BackgroundLoop, Work
from opsin.core.errors import EngineError


async def nothing() -> None:
    pass


async def forever() -> None:
    await asyncio.Event().wait()


@pytest.fixture
def background() -> Iterator[BackgroundLoop]:
    loop = BackgroundLoop("test")
    yield loop
    loop.finish(nothing)
    loop.join()


async def _double(number: int) -> int:
    await asyncio.sleep(0.01)
    return 2 * number


def test_results_for_several_threads(background: BackgroundLoop) -> None:
    def double(number: int) -> int:
        return background.run(partial(_double, number))

    with ThreadPoolExecutor(8) as threads:
        assert [*threads.map(double, range(20))] == [*range(0, 40, 2)]


async def test_beside_a_running_loop(background: BackgroundLoop) -> None:
    assert background.run(lambda: _double(4)) == 8


def test_results_in_order_and_only_so_many_at_once(background: BackgroundLoop) -> None:
    running, most = 0, 0

    async def work(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (7 - number % 7))
        running -= 1
        return number

    places = threading.Semaphore(3)
    assert background.gather((partial(work, number) for number in range(20)), places) == [*range(20)]
    assert most == 3
    assert background.gather([], places) == []


@pytest.mark.parametrize("failing", ["coroutine", "iteration"])
def test_the_first_failure_ends_the_rest(background: BackgroundLoop, failing: str) -> None:
    started: list[int] = []
    ended: list[int] = []

    async def work(number: int) -> None:
        started.append(number)
        try:
            await (asyncio.sleep(0.05) if number == 2 and failing == "coroutine" else asyncio.sleep(60))
            raise ValueError("first")
        finally:
            ended.append(number)

    def works() -> Iterator[Work[None]]:
        for number in range(100):
            if number == 2 and failing == "iteration":
                raise ValueError("first")
            yield partial(work, number)

    places = threading.Semaphore(4)
    with pytest.raises(ValueError, match="first"):
        background.gather(works(), places)
    assert sorted(started) == sorted(ended)
    assert len(started) <= 5
    assert all(places.acquire(blocking=False) for _ in range(4))


def test_what_is_done_is_not_kept(background: BackgroundLoop) -> None:
    alive: weakref.WeakSet[_Large] = weakref.WeakSet()
    most = 0

    async def work(large: _Large) -> None:
        nonlocal most
        assert large in alive
        most = max(most, len(alive))

    def works() -> Iterator[Work[None]]:
        for _ in range(50):
            large = _Large()
            alive.add(large)
            yield partial(work, large)

    background.gather(works(), threading.Semaphore(1))
    assert most <= 4


class _Large:
    pass


def test_an_interrupt_cancels_what_was_waited_for(background: BackgroundLoop) -> None:
    cancelled = threading.Event()

    async def interrupted() -> None:
        # The waiting thread may still be submitting; that must not matter.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        try:
            await forever()
        finally:
            cancelled.set()

    with pytest.raises(KeyboardInterrupt):
        background.run(interrupted)
    assert cancelled.wait(5)
    assert background.run(lambda: _double(1)) == 2


def test_the_end_runs_one_last_coroutine_and_cancels_the_rest(background: BackgroundLoop) -> None:
    ran: list[str] = []

    async def last() -> None:
        ran.append("last")

    def waiting() -> str:
        with pytest.raises(EngineError, match="closed"):
            background.run(forever)
        return "refused"

    with ThreadPoolExecutor(1) as threads:
        result = threads.submit(waiting)
        background.run(nothing)
        background.finish(last)
        background.finish(nothing)
        background.join()
        assert result.result() == "refused"
    assert ran == ["last"]
    with pytest.raises(EngineError, match="closed"):
        background.run(nothing)


def test_a_fork_neither_uses_nor_ends_it(background: BackgroundLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        with pytest.raises(EngineError, match="forked"):
            background.run(nothing)
        background.finish(nothing)
        background.join()
    background.run(nothing)
