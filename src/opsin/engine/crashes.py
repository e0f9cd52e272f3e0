"""When to start a dead engine again, and when not to. Knows no process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from opsin.core.errors import ConfigError, OpsinError

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_CRASHES = 3
WINDOW_S = 300.0
FIRST_DELAY_S = 1.0


class CrashHistory:
    """The last crashes: each restart within the window waits twice as long, the third crash ends it."""

    def __init__(self) -> None:
        self._crashed_at: deque[float] = deque(maxlen=MAX_CRASHES)

    def record(self, now: float) -> float | None:
        """Notes a crash at ``now`` (seconds); returns how long to wait before the restart, None to stay down."""
        self._crashed_at.append(now)
        recent = sum(now - crashed_at <= WINDOW_S for crashed_at in self._crashed_at)
        return None if recent >= MAX_CRASHES else FIRST_DELAY_S * 2.0 ** (recent - 1)


async def restarted(
    crashes: CrashHistory, launch: Callable[[], Awaitable[T]], give_up: Callable[[str], None]
) -> T | None:
    """What the next start gives: after a pause, and again and again where it fails. None when it shall stay down.

    ``give_up`` is told when there were too many crashes. A ConfigError is final too, and has said itself what is wrong.
    """
    while (delay_s := crashes.record(time.monotonic())) is not None:
        await asyncio.sleep(delay_s)
        try:
            return await launch()
        except OpsinError as error:
            logger.error("the restart failed: %s", error.message)
            if isinstance(error, ConfigError):
                return None
    give_up(f"{MAX_CRASHES} times within {WINDOW_S / 60:g} minutes and stays down")
    return None
