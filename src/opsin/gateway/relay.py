"""Between what makes an answer and what sends it: signs of life while nothing comes, and together what came together.

The answer is read in a task of its own, from its first event to its last, so that one timeout serves all of it; a
task and a timeout for each event took a third of the gateway's time for a streamed text.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeVar

from opsin.gateway.deadline import Deadline

T = TypeVar("T")

_MAX_AHEAD = 64
"""Events that may wait for a slow reader; then the answer itself waits."""


@dataclass(frozen=True, slots=True)
class Silence:
    """Nothing has come for one interval."""


class Relay(Generic[T]):
    """The events of an answer, and a Silence after every ``interval_s`` without one.

    Raises what the answer raises, and what ``Deadline.within`` does, in place of the next event. Leaving the block, or
    ``aclose``, ends the answer wherever it is.
    """

    def __init__(self, events: AsyncGenerator[T, None], deadline: Deadline, interval_s: float) -> None:
        self._interval_s = interval_s
        self._ready: deque[T] = deque()
        self._error: Exception | None = None
        self._is_whole = False
        self._reader: asyncio.Future[None] | None = None  # who waits for an event
        self._room = asyncio.Event()
        self._task = asyncio.create_task(self._read(events, deadline))
        self._task.add_done_callback(lambda _: self._tell())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T | Silence:
        if not self._ready and not self._task.done() and not await self._something():
            return Silence()
        if self._ready:
            self._room.set()
            return self._ready.popleft()
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    @property
    def has_more(self) -> bool:
        """Whether another event is there already."""
        return bool(self._ready)

    def let_end(self) -> None:
        """The last event was read: what follows only gives back what the answer held, as a connection, and may."""
        self._is_whole = True

    async def aclose(self) -> None:
        """Returns when the answer has ended. Safe to call twice."""
        if not self._is_whole:
            self._task.cancel()
        if not self._task.done():
            await asyncio.wait({self._task})

    async def _something(self) -> bool:
        """Waits for an event or the end; False after an interval without either."""
        loop = asyncio.get_running_loop()
        self._reader = reader = loop.create_future()
        alarm = loop.call_later(self._interval_s, _wake, reader)
        try:
            await reader
        finally:
            alarm.cancel()
            self._reader = None
        return bool(self._ready) or self._task.done()

    async def _read(self, events: AsyncGenerator[T, None], deadline: Deadline) -> None:
        try:
            async with aclosing(events):
                await deadline.within(self._pass_on(events))
        except Exception as error:  # not a border: the reader raises it
            self._error = error

    async def _pass_on(self, events: AsyncGenerator[T, None]) -> None:
        async for event in events:
            self._ready.append(event)
            self._tell()
            if len(self._ready) >= _MAX_AHEAD:
                self._room.clear()
                await self._room.wait()

    def _tell(self) -> None:
        if self._reader is not None:
            _wake(self._reader)


def _wake(reader: asyncio.Future[None]) -> None:
    if not reader.done():
        reader.set_result(None)
