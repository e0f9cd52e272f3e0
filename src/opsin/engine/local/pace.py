"""When the encoder makes room for those who decode. Knows no model."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

ENCODING_PER_DECODING = 3.0
"""A stream beside one picture runs at a quarter of its speed at least: a tile on a Xeon with AMX is two turns."""
_RECENT = 8
_NOBODY_KNOWS = float("inf")


class Pace:
    """How long decode steps and tokens of the encoder take, and when the last step ended."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._steps_s: deque[float] = deque(maxlen=_RECENT)
        self._tokens_s: deque[float] = deque(maxlen=_RECENT)
        self._decoded_at = 0.0

    def decoded(self, started: float) -> None:
        """A decode step that began at ``started`` has ended."""
        self._decoded_at = self._now()
        self._steps_s.append(self._decoded_at - started)

    def encoded(self, unit_s: float, unit_tokens: int) -> None:
        """The encoder took so long for a unit of so many tokens."""
        self._tokens_s.append(unit_s / unit_tokens)

    def is_due(self, num_waiting: int, num_units: int, unit_tokens: int) -> bool:
        """Whether those who decode get their next token before the encoder goes on with ``num_units`` at once.

        The later, the more requests wait meanwhile: each of them pays for the step; but of several units after the time
        of one. Steps and tokens take what the shortest of the last ones took, because a busy neighbour only ever adds.
        """
        if not self._steps_s:
            return False
        turn_s = ENCODING_PER_DECODING * min(self._steps_s) * num_waiting
        token_s = min(self._tokens_s, default=_NOBODY_KNOWS) if num_units > 1 else _NOBODY_KNOWS
        return self._now() - self._decoded_at >= min(turn_s, token_s * unit_tokens)
