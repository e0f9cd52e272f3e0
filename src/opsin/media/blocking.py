"""Calls that may hang in the kernel and cannot be cancelled: a name server or a file system that does not answer.

Each runs in a daemon thread of its own. In the loop's executor a few hung ones would hold up everything else that
uses it (measured: 40 lookups of names that hang kept the next job waiting for 2.7 s), and the end of the process too.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TypeVar

T = TypeVar("T")


class BlockingCalls:
    """At most ``limit`` at once, counted until they really end. Lives in one event loop."""

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._places = asyncio.Semaphore(limit)

    async def run(self, call: Callable[[], T]) -> T:
        """The result of ``call``. A caller that is cancelled leaves at once; the thread ends by itself."""
        await self._places.acquire()
        outcome: Future[T] = Future()
        outcome.set_running_or_notify_cancel()  # from here on a caller that leaves cannot cancel it
        outcome.add_done_callback(partial(self._release, asyncio.get_running_loop()))
        try:
            threading.Thread(target=_work, args=(call, outcome), name=self._name, daemon=True).start()
        except RuntimeError as error:  # the system has no thread left
            outcome.set_exception(error)
        return await asyncio.wrap_future(outcome)

    def _release(self, loop: asyncio.AbstractEventLoop, _: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._places.release)


def _work(call: Callable[[], T], outcome: Future[T]) -> None:
    try:
        outcome.set_result(call())
    except BaseException as error:  # whatever it is, it belongs to the caller
        outcome.set_exception(error)
