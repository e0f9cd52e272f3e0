"""The end of the server, for requests that are still in progress when its drain is over."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager


class Closing:
    """Ends all waits, each after its grace. Lives in one event loop."""

    def __init__(self) -> None:
        self._begun_at: float | None = None  # of the loop's clock
        self._waits: dict[asyncio.Timeout, float] = {}

    @property
    def begun(self) -> bool:
        """Whether the end has come."""
        return self._begun_at is not None

    def begin(self) -> None:
        """From now on every wait times out: those that are going on, and those to come."""
        if self._begun_at is None:
            self._begun_at = asyncio.get_running_loop().time()
            for wait, grace_s in self._waits.items():
                self._shorten(wait, self._begun_at + grace_s)

    @contextmanager
    def ends(self, wait: asyncio.Timeout, grace_s: float) -> Generator[None]:
        """The timeout of the block is over at the latest so long after the server closes."""
        self._waits[wait] = grace_s
        if self._begun_at is not None:
            self._shorten(wait, self._begun_at + grace_s)
        try:
            yield
        finally:
            del self._waits[wait]

    def _shorten(self, wait: asyncio.Timeout, at: float) -> None:
        if not wait.expired() and ((due := wait.when()) is None or due > at):
            wait.reschedule(at)
