"""The way into one engine: so many at once, and whose turn it is next. Lives in one event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from opsin.core.errors import Code, Overloaded
from opsin.tenants.fair import FairQueue, Lane, Waiting


@dataclass(frozen=True, slots=True)
class Cost:
    """What a prompt will take of the engine, in tokens. ``text_tokens`` may be an estimate: it only orders turns."""

    image_tokens: int
    text_tokens: int

    @property
    def total(self) -> int:
        """At least 1, so that nobody is free."""
        return max(1, self.image_tokens + self.text_tokens)

    @property
    def lane(self) -> Lane:
        """Where it waits."""
        return Lane.PICTURES if self.image_tokens else Lane.TEXT


class Lanes:
    """``max_running`` None lets everyone in at once, as far as their own ``max_concurrency`` goes.

    Slots are counted, not weighed: an engine's batch has so many rows, whatever is in them. Order is by weight.
    """

    def __init__(self, max_running: int | None, timeout_s: float) -> None:
        self._max_running = max_running
        self._timeout_s = timeout_s
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()
        self._running: Counter[str] = Counter()
        self._caps: dict[str, int] = {}  # of tenants that have one

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn."""
        return len(self._queue)

    def try_enter(self, tenant: str, max_concurrency: int | None) -> bool:
        """Takes a slot if one is free and nobody waits for it."""
        self._set_cap(tenant, max_concurrency)
        if not self._has_slot() or tenant in self._capped() or self._others_wait():
            return False
        self._running[tenant] += 1
        return True

    async def enter(self, tenant: str, cost: Cost) -> None:
        """Waits for a slot in turn.

        Raises:
            Overloaded: it took longer than the limit.
        """
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = Waiting(tenant, cost.lane, cost.total, granted)
        self._queue.push(waiting)
        try:
            async with asyncio.timeout(self._timeout_s):
                await granted
        except TimeoutError:
            self._give_up(waiting)
            raise Overloaded(
                f"the engine had no room for {self._timeout_s:g} s (max_queue_s)",
                code=Code.QUEUE_TIMEOUT,
                retry_after_s=5,
            ) from None
        except asyncio.CancelledError:
            self._give_up(waiting)
            raise

    def leave(self, tenant: str) -> None:
        """Gives a slot back, to whoever is next."""
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]
        self._grant()

    def _give_up(self, waiting: Waiting[asyncio.Future[None]]) -> None:
        """Its turn may have come in the same moment."""
        if not self._queue.remove(waiting) and not waiting.item.cancelled():
            self.leave(waiting.tenant)

    def _grant(self) -> None:
        while self._has_slot():
            first = self._queue.pop(without=self._capped())
            if first is None:
                return
            if not first.item.cancelled():  # by a client that left, whose task has not run since
                self._running[first.tenant] += 1
                first.item.set_result(None)

    def _has_slot(self) -> bool:
        return self._max_running is None or self._running.total() < self._max_running

    def _others_wait(self) -> bool:
        """Someone who may have the slot; who is at a limit of its own holds up nobody else."""
        return self._queue.has_any(without=self._capped())

    def _capped(self) -> frozenset[str]:
        return frozenset(tenant for tenant, cap in self._caps.items() if self._running[tenant] >= cap)

    def _set_cap(self, tenant: str, max_concurrency: int | None) -> None:
        """Whatever the key says that was sent last."""
        if max_concurrency is None:
            self._caps.pop(tenant, None)
        else:
            self._caps[tenant] = max_concurrency
