"""Bytes that many may hold at once, up to a limit, first come, first served: small ones do not overtake a large one.

For one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class ByteSemaphore:
    """A semaphore that counts bytes and hands them out in the order of waiting."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._free_bytes = max_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def held_bytes(self) -> int:
        """Handed out now."""
        return self._max_bytes - self._free_bytes

    @asynccontextmanager
    async def hold(self, num_bytes: int) -> AsyncGenerator[None]:
        """Waits for ``num_bytes`` and holds them to the end of the block; more than there are means all of them."""
        wanted = min(num_bytes, self._max_bytes)
        await self._take(wanted)
        try:
            yield
        finally:
            self._give_back(wanted)

    async def _take(self, wanted: int) -> None:
        if not self._waiting and wanted <= self._free_bytes:
            self._free_bytes -= wanted
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((wanted, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(wanted)  # it was handed out in the same moment
            else:
                self._waiting.remove((wanted, turn))
                self._serve()  # those behind may fit
            raise

    def _give_back(self, num_bytes: int) -> None:
        self._free_bytes += num_bytes
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free_bytes:
            wanted, turn = self._waiting.popleft()
            if not turn.cancelled():
                self._free_bytes -= wanted
                turn.set_result(None)
