"""Which pictures an upstream that nobody else asks still has, as far as can be known from what it was sent.

It evicts without saying so. A picture that is gone is found out when it is asked for by name, which costs one refused
request; one that is gone twice in a row is too large for its cache, or the cache too small, and is not tried again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

MAX_NAMES = 16384
"""Some 3 MB of names; the least recently used are forgotten."""

_MAX_MISSES = 2


class KnownPictures:
    """Names of pictures, and how often each was missed since it was last found."""

    def __init__(self, max_names: int = MAX_NAMES) -> None:
        self._max_names = max_names
        self._misses: OrderedDict[str, int] = OrderedDict()
        self._there: set[str] = set()

    def among(self, names: Iterable[str]) -> frozenset[str]:
        """Those that should be there."""
        return frozenset(name for name in names if name in self._there)

    def sent(self, names: Iterable[str]) -> None:
        """These went with their bytes and were taken."""
        for name in names:
            misses = self._misses.setdefault(name, 0)
            self._misses.move_to_end(name)
            if misses < _MAX_MISSES:
                self._there.add(name)
        while len(self._misses) > self._max_names:
            oldest, _ = self._misses.popitem(last=False)
            self._there.discard(oldest)

    def found(self, names: Iterable[str]) -> None:
        """These went by name and were there."""
        for name in names:
            self._misses[name] = 0
            self._misses.move_to_end(name)

    def missed(self, *names: str) -> None:
        """These went by name and were not there."""
        for name in names:
            self._there.discard(name)
            self._misses[name] = self._misses.get(name, 0) + 1

    def clear(self) -> None:
        """The upstream may be another one now."""
        self._misses.clear()
        self._there.clear()
