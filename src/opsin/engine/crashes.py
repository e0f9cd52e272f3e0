"""When to start a dead engine again, and when not to. Knows no process and no clock."""

from __future__ import annotations

from collections import deque

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
