"""An event loop in a thread of its own, for callers that have none, or have one that they are busy in."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import suppress
from typing import Any, Generic, TypeVar

from opsin.core.errors import Code, EngineError

T = TypeVar("T")

Work = Callable[[], Coroutine[Any, Any, T]]


class BackgroundLoop:
    """Runs coroutines for any number of threads. Starts at once; ends with ``finish``.

    Uses no executor: those end before the threads of a script do, and a thread may still ask when the script is over.
    """

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
        """The result of one coroutine. Ctrl-C in the waiting thread cancels it.

        Raises:
            EngineError: the loop is finished, or belongs to the process that this one was forked from.
        """
        (result,) = self.gather([work], threading.Semaphore())
        return result

    def gather(self, works: Iterable[Work[T]], places: threading.Semaphore) -> list[T]:
        """The results of many, in order; each holds one of ``places`` while it runs.

        ``works`` is iterated in this thread, as places become free, and none is kept once it runs. The first failure,
        also of the iteration, cancels the rest and is raised when nothing runs any more. Ctrl-C cancels all and does
        not wait. Raises EngineError as ``run``.
        """
        calls: list[_Call[T]] = []
        failures: list[BaseException] = []

        def ended(error: BaseException | None) -> None:
            if error is not None:
                failures.append(error)
            places.release()

        try:
            for work in works:
                places.acquire()
                call = _Call(self._loop, work, ended)
                calls.append(call)
                self._submit(call)
                if failures:
                    break
            wait([call.future for call in calls], return_when=FIRST_EXCEPTION)
            if failures:
                raise failures[0]
            return [call.future.result() for call in calls]
        except BaseException as error:
            for call in calls:
                call.cancel()
            if isinstance(error, Exception):
                wait([call.future for call in calls])
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
        """Raises EngineError, and ends the call with it."""
        refusal: EngineError | None = None
        with self._lock:
            if os.getpid() != self._owner:
                refusal = EngineError("this process was forked; make an LLM of its own in it", code=Code.ENGINE_CLOSED)
            elif self._finishing:
                refusal = _closed()
            else:
                self._loop.call_soon_threadsafe(call.start)
        if refusal is not None:
            call.end(refusal)
            raise refusal

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

    def __init__(
        self, loop: asyncio.AbstractEventLoop, work: Work[T], ended: Callable[[BaseException | None], None]
    ) -> None:
        """``ended`` is called once, in either thread, before ``future`` is set."""
        self.future: Future[T] = Future()
        self._loop = loop
        self._work: Work[T] | None = work
        self._ended = ended
        self._task: asyncio.Task[T] | None = None

    def start(self) -> None:
        """In the loop."""
        work, self._work = self._work, None  # it may hold a picture, and the call is kept to the end
        assert work is not None, "a call is started once"
        self._task = self._loop.create_task(work())
        self._task.add_done_callback(self._finish)

    def cancel(self) -> None:
        """From the waiting thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._cancel)

    def end(self, error: BaseException) -> None:
        """With an error."""
        self._ended(error)
        self.future.set_exception(error)

    def _cancel(self) -> None:
        """After ``start``, if that was ever called: the loop keeps the order."""
        if self._task is not None:
            self._task.cancel()

    def _finish(self, task: asyncio.Task[T]) -> None:
        error = _closed() if task.cancelled() else task.exception()
        if error is not None:
            self.end(error)
            return
        self._ended(None)
        self.future.set_result(task.result())


def _closed() -> EngineError:
    return EngineError("this LLM is closed", code=Code.ENGINE_CLOSED)
