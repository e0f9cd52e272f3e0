"""Whether the client of a request is still there: what is done for one that left ends at once.

One task for a whole exchange, from the end of the request's body to the end of the answer.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from starlette.requests import ClientDisconnect
from starlette.types import Receive


class Presence:
    """A block that the client's leaving ends with ClientDisconnect, as ``asyncio.timeout`` does with time.

    It watches from ``watch`` on, since before that the body is still to be received, which tells of the leaving itself.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._watcher: asyncio.Task[None] | None = None
        self._has_left = False

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None, "in a task"
        self._task, self._cancelling = task, task.cancelling()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        watcher, self._watcher = self._watcher, None  # whose end holds this block: not in a circle, for the collector
        if watcher is not None:
            watcher.cancel()
        if not self._has_left:
            return
        if self._task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError):
            raise ClientDisconnect from error

    def watch(self) -> None:
        """The whole body has been received."""
        self._watcher = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._has_left = True
        self._task.cancel()
