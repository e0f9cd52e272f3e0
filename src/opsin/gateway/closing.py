"""The end of the server, for requests that are still in progress when its drain is over."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager


class Closing:
    """Ends all waits at once. Lives in one event loop."""

    def __init__(self) -> None:
        self.begun = False
        self._waits: set[asyncio.Timeout] = set()

    def begin(self) -> None:
        """From now on every wait times out: those that are going on, and those to come."""
        self.begun = True
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(asyncio.get_running_loop().time())

    @contextmanager
    def ends(self, wait: asyncio.Timeout) -> Generator[None]:
        """The timeout of the block is over at the latest when the server closes."""
        self._waits.add(wait)
        try:
            yield
        finally:
            self._waits.discard(wait)
