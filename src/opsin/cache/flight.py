"""Single flight: what several want at once is done once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Flights(Generic[T]):
    """Work by key. It runs in a task of its own, so that no caller that leaves takes it away from the others; when the
    last one has left, it is cancelled. Lives in one event loop."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, tuple[asyncio.Task[T], list[None]]] = {}

    async def run(
        self, key: Hashable, work: Callable[[], Awaitable[T]], leave: asyncio.Future[BaseException] | None = None
    ) -> T:
        """The result of ``work``, or of that which runs already under this key. Raises what it raises.

        ``leave`` is the caller's own reason not to wait for the end; its result is raised.
        """
        if key not in self._flights:
            task = asyncio.ensure_future(_awaited(work))
            self._flights[key] = (task, [])
            task.add_done_callback(lambda task: self._ended(key, task))
        task, waiting = self._flights[key]
        waiting.append(None)
        try:
            await asyncio.wait((task,) if leave is None else (task, leave), return_when=asyncio.FIRST_COMPLETED)
            if leave is None or task.done():
                return task.result()
            raise leave.result()
        finally:
            waiting.pop()
            if not waiting and not task.done():
                self._ended(key, task)
                task.cancel()

    def _ended(self, key: Hashable, task: asyncio.Task[T]) -> None:
        """Unless the key is another flight's by now."""
        if key in self._flights and self._flights[key][0] is task:
            del self._flights[key]


async def _awaited(work: Callable[[], Awaitable[T]]) -> T:
    return await work()
