"""SIGHUP: reads file, environment and flags once more, and changes what can change while requests run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from opsin import startup
from opsin.app import Application
from opsin.settings import Configuration

logger = logging.getLogger(__name__)


class Reloader:
    """One reload at a time; a signal during one gives it up for another. Waits until the application has started."""

    def __init__(
        self, application: Application, read: Callable[[], Configuration], starting: asyncio.Task[bool]
    ) -> None:
        self._application = application
        self._read = read
        self._starting = starting
        self._turn = asyncio.Lock()  # what is given up may have to end what it began
        self._running: asyncio.Task[None] | None = None

    def reload_soon(self) -> None:
        """Returns at once, and fails never: the log says what became of it."""
        if self._running is not None and not self._running.done():
            logger.warning("reload: the one in progress is given up for a newer one")
            self._running.cancel()
        self._running = asyncio.create_task(self._reload())

    async def settled(self) -> None:
        """Waits until what was asked for is done."""
        if self._running is not None:
            await asyncio.wait({self._running})

    async def close(self) -> None:
        """Gives up what is going on."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})
        async with self._turn:
            pass

    async def _reload(self) -> None:
        await asyncio.wait({self._starting})
        async with self._turn:
            logger.info("reload: in progress")
            try:
                await self._read_and_apply()
            except Exception:  # the border of a signal: whatever is wrong, the server goes on as it is
                logger.exception("reload failed")

    async def _read_and_apply(self) -> None:
        configuration = await asyncio.to_thread(self._read)
        problems = await asyncio.to_thread(startup.problems, configuration, listens=False)
        for problem in problems:
            logger.error("reload: %s", problem.text)
        if not problems:
            await self._application.reload(configuration.settings)
