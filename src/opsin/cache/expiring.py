"""What has ended is removed, also where nobody asks for it any more: a promise on disks and in memory, not a lookup."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from opsin.cache.tier import TierError
from opsin.telemetry.logs import fields

logger = logging.getLogger(__name__)

INTERVAL_S = 60.0


class Expiring:
    """Calls each of ``expire`` now and then. Lives in one event loop."""

    def __init__(self, *expire: Callable[[], Awaitable[None]], interval_s: float = INTERVAL_S) -> None:
        self._expire = expire
        self._interval_s = interval_s
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Until ``close``; at once for what a process left that has ended."""
        self._running = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Safe to call twice."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    async def _run(self) -> None:
        while True:
            for expire in self._expire:
                try:
                    await expire()
                except TierError as error:
                    logger.warning("%s", fields(event="not_expired", reason=str(error)))
            await asyncio.sleep(self._interval_s)
