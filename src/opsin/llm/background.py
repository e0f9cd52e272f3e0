"""An event loop in a thread of its own, for callers that have none, or have one that they are busy in."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Generic, TypeVar

from opsin.core.errors import EngineError

T = TypeVar("T")

Work = Callable[[], Coroutine[Any, Any, T]]


class BackgroundLoop:
    """Runs coroutines for any number of threads. Starts at once; ends with ``finish``."""

    def __init__(self, name: str) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._finishing = False
        self._loop = asyncio.new_event_loop()
        self._ending: asyncio.Future[Work[None]] = self._loop.create_future()
        # A daemon: the interpreter would otherwise wait for it before it calls what ends it.
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Work[T]) -> T:
        """The result of a coroutine. An exception in the waiting thread, Ctrl-C above all, cancels it.

        Raises:
            EngineError: the loop is finished, or belongs to the process that this one was forked from.
        """
        call = _Call(self._loop, work)
        try:
            self._submit(call)
            return call.result.result()
        except CancelledError:
            raise _closed() from None
        except BaseException:
            call.cancel()
            raise

    def finish(self, last: Work[None]) -> None:
        """Runs one last coroutine, cancels what is left, and ends the thread. Only the first call counts."""
        if os.getpid() != self._owner:
            return  # a fork has no copy of the thread, and what it holds is its parent's
        with self._lock:
            if not self._finishing:
                self._finishing = True
                self._loop.call_soon_threadsafe(self._ending.set_result, last)

    def join(self) -> None:
        """Waits for the end of ``finish``."""
        if os.getpid() == self._owner:
            self._thread.join()

    def _submit(self, call: _Call[Any]) -> None:
        if os.getpid() != self._owner:
            raise EngineError("this process was forked; make an LLM of its own in it", code="engine_closed")
        with self._lock:
            if self._finishing:
                raise _closed()
            self._loop.call_soon_threadsafe(call.start)

    def _serve(self) -> None:
        """Not ``asyncio.run``: it ends executors in a new thread, which a dying interpreter does not allow."""
        try:
            self._loop.run_until_complete(self._until_finished())
        finally:
            self._loop.run_until_complete(self._cancel_rest())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _until_finished(self) -> None:
        last = await self._ending
        await last()

    async def _cancel_rest(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


class _Call(Generic[T]):
    """A coroutine on its way through the loop. Unlike asyncio's, it can be cancelled while it is being submitted."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Work[T]) -> None:
        self.result: Future[T] = Future()
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[T] | None = None

    def start(self) -> None:
        """In the loop."""
        self._task = self._loop.create_task(self._work())
        self._task.add_done_callback(self._finish)

    def cancel(self) -> None:
        """From the waiting thread, which no longer waits."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        """After ``start``, if that was ever called: the loop keeps the order."""
        if self._task is not None:
            self._task.cancel()

    def _finish(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.result.cancel()
        elif (error := task.exception()) is not None:
            self.result.set_exception(error)
        else:
            self.result.set_result(task.result())


def _closed() -> EngineError:
    return EngineError("this LLM is closed", code="engine_closed")
