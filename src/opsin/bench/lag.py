"""How late the event loop of a client process is: what every time it stamps may be off by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_TICK_S = 0.01
_ROUNDING_NS = 1_000_000
"""asyncio rounds timers up to the next millisecond of epoll. That delays a tick and never a read, so it is no lag."""


class LagProbe:
    """Sleeps 10 ms again and again, and keeps by how much each sleep was too long."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._ticks: list[tuple[int, int]] = []  # when it woke, how late

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            start = self._clock()
            await asyncio.sleep(_TICK_S)
            now = self._clock()
            self._ticks.append((now, max(0, now - start - round(_TICK_S * 1e9) - _ROUNDING_NS)))

    @property
    def lags_us(self) -> list[int]:
        """All lags so far, in microseconds."""
        return [lag // 1000 for _, lag in self._ticks]

    def worst_since(self, t: int) -> int:
        """The largest lag of the ticks after ``t``, in nanoseconds."""
        worst = 0
        for at, lag in reversed(self._ticks):
            if at < t:
                break
            worst = max(worst, lag)
        return worst
