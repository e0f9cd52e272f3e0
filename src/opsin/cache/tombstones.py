"""What was deleted and must not come back: consulted at every admission to a cache.

Work that began before a deletion may end after it. For ``ttl_s`` seconds nothing of a buried picture is kept, whoever
brings it; only uploading it again digs it up. Lives in one event loop.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable

TOMBSTONE_TTL_S = 900.0
"""Longer than any request is answered for, unless the operator says otherwise."""

_ALL = ""
_MAX = 100_000
"""About 20 MB; the oldest go first."""
_MAX_OF_SCOPE = 1000
"""Then all of the scope is buried, or one tenant's deletions would push out the tombstones of the others."""


class Tombstones:
    """Of records of scopes, and of whole scopes."""

    def __init__(self, ttl_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._ttl_s = ttl_s
        self._now = now
        self._buried_at: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._counts: Counter[str] = Counter()  # by scope

    @property
    def ttl_s(self) -> float:
        """How long one stands."""
        return self._ttl_s

    def bury(self, scope: str, record: str | None) -> None:
        """A record, or all of a scope."""
        self._expire()
        if record is None or self._counts[scope] >= _MAX_OF_SCOPE:
            for name in [name for name in self._buried_at if name[0] == scope]:
                self._forget(name)
            record = _ALL
        name = (scope, record)
        self._forget(name)
        self._buried_at[name] = self._now()
        self._counts[scope] += 1

    def lift(self, scope: str, record: str) -> None:
        """The tenant wants it kept again. What is buried with its whole scope stays so."""
        self._forget((scope, record))

    def covers(self, scope: str, record: str, began_at: float | None = None) -> bool:
        """Whether it must not be kept; with ``began_at``, by work that began then."""
        self._expire()
        buried = [self._buried_at[name] for name in ((scope, record), (scope, _ALL)) if name in self._buried_at]
        return bool(buried) and (began_at is None or max(buried) >= began_at)

    def _expire(self) -> None:
        oldest = self._now() - self._ttl_s
        while self._buried_at and (next(iter(self._buried_at.values())) <= oldest or len(self._buried_at) > _MAX):
            self._forget(next(iter(self._buried_at)))

    def _forget(self, name: tuple[str, str]) -> None:
        if self._buried_at.pop(name, None) is None:
            return
        self._counts[name[0]] -= 1
        if not self._counts[name[0]]:
            del self._counts[name[0]]
