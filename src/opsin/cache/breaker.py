"""Stops asking something that does not answer, so that waiting for it costs nobody anything."""

from __future__ import annotations

import time
from collections.abc import Callable

_FAILURES = 3
"""In a row, until it opens."""
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0


class Breaker:
    """Open after three failures in a row, for 1 s, then twice as long each time that a try fails. Lives in one loop."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._failures = 0
        self._pause_s = _FIRST_PAUSE_S
        self._until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether nothing shall be tried. When a pause ends one try is let through, and others wait for its outcome."""
        if self._failures < _FAILURES:
            return False
        if self._now() < self._until:
            return True
        self._until = self._now() + self._pause_s
        return False

    def succeeded(self) -> None:
        """It answers."""
        self._failures = 0
        self._pause_s = _FIRST_PAUSE_S

    def failed(self) -> None:
        """It does not."""
        self._failures += 1
        if self._failures >= _FAILURES:
            self._until = self._now() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
