"""Whether keeping vision features pays: a cache that hardly ever helps turns itself down, and finds out when it would.

Units are counted, not pictures: of a stream of screenshots no picture comes twice and most tiles do. While turned down
one unit in ``SAMPLE`` is kept, always the same ones by their keys, so that what they hit is what all would have hit.
Knows no features.
"""

from __future__ import annotations

import logging
import zlib

from opsin.telemetry.logs import fields

logger = logging.getLogger(__name__)

LEAST_RATE = 0.01
"""Below this share of hits nothing is gained by the memory."""
WINDOW = 2000
"""Lookups of units until it is judged; a hit rate of 1 % is then known to within 0.2 %, one standard deviation."""
SAMPLE = 16
SAMPLE_WINDOW = 250
"""Lookups of sampled units until it is judged anew; about two windows of all."""


class HitWatch:
    """Judges lookups window by window."""

    def __init__(self) -> None:
        self.is_down = False
        self._lookups = self._hits = 0

    def saw(self, key: str, *, found: bool) -> bool:
        """Counts one lookup; true when the cache has to turn down with it."""
        if self.is_down and not _is_sampled(key):
            return False
        self._lookups += 1
        self._hits += found
        if self._lookups < (SAMPLE_WINDOW if self.is_down else WINDOW):
            return False
        return self._judge()

    def admits(self, key: str) -> bool:
        """Whether a unit may be kept."""
        return not self.is_down or _is_sampled(key)

    def _judge(self) -> bool:
        was_down, self.is_down = self.is_down, self._hits < LEAST_RATE * self._lookups
        if self.is_down != was_down:
            how = "down: hardly any unit came again" if self.is_down else "up: units come again"
            logger.warning("the feature cache turns itself %s %s", how, fields(lookups=self._lookups, hits=self._hits))
        self._lookups = self._hits = 0
        return self.is_down and not was_down


def _is_sampled(key: str) -> bool:
    return zlib.crc32(key.encode()) % SAMPLE == 0
