"""Keys and values of finished requests, for the next turn of the same conversation.

Found by what stood at each position, within one scope; the longest common beginning counts, to the token. Values are
opaque objects with a size. Least recently used out first. Used by the engine's thread alone. Knows no torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

Identity = tuple[int | tuple[str, int], ...]
"""Per position a token id, or (unit key, row) where a picture's features stand."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prefix:
    """Keys and values of ``identity``; ``value`` belongs to the runner. ``origins`` are of the pictures that it saw."""

    scope: str
    identity: Identity
    origins: frozenset[str]
    value: object
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The first ``length`` positions of ``prefix`` are those of a sequence."""

    prefix: Prefix
    length: int


class PrefixCache:
    """At most ``capacity_bytes``, none older than ``ttl_s`` since its last use."""

    def __init__(
        self,
        capacity_bytes: int,
        bytes_per_token: int,
        ttl_s: float = float("inf"),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._capacity_bytes = capacity_bytes
        self._bytes_per_token = bytes_per_token
        self._ttl_s = ttl_s
        self._now = now
        self._prefixes: dict[Prefix, float] = {}  # least recently used first, with the time of that use
        self.size_bytes = 0

    def find(self, scope: str, identity: Identity, at_most: int) -> PrefixMatch | None:
        """The longest beginning of ``identity`` that is kept, cut to ``at_most`` positions."""
        self.expire()
        best: PrefixMatch | None = None
        for prefix in self._prefixes:
            if prefix.scope == scope:
                length = min(common_length(prefix.identity, identity), at_most)
                if length > (best.length if best else 0):
                    best = PrefixMatch(prefix, length)
        if best is not None:
            self._use(best.prefix)
        return best

    def has_room(self, num_tokens: int) -> bool:
        """Whether so many positions could be kept at all."""
        return num_tokens * self._bytes_per_token <= self._capacity_bytes

    def holds(self, scope: str, identity: Identity) -> bool:
        """Whether all of ``identity`` is kept already, so that nobody has to copy it."""
        return any(old.scope == scope and _is_beginning(identity, old.identity) for old in self._prefixes)

    def store(self, prefix: Prefix) -> None:
        """Keeps a prefix, and drops those that are the beginning of it."""
        if prefix.size_bytes > self._capacity_bytes:
            return
        self._drop(lambda old: old.scope == prefix.scope and _is_beginning(old.identity, prefix.identity))
        while self.size_bytes + prefix.size_bytes > self._capacity_bytes:
            self._remove(next(iter(self._prefixes)))
        self._prefixes[prefix] = self._now()
        self.size_bytes += prefix.size_bytes

    def purge(self, scope: str, origin: str | None) -> int:
        """Forgets what saw a picture, or all of a scope; returns how many."""
        return self._drop(lambda old: old.scope == scope and (origin is None or origin in old.origins))

    def names(self, scope: str) -> frozenset[str]:
        """Everything that stands here of a scope's pictures: keys of units, and what they were made of."""
        prefixes = [prefix for prefix in self._prefixes if prefix.scope == scope]
        units = (spot[0] for prefix in prefixes for spot in prefix.identity if isinstance(spot, tuple))
        return frozenset(units).union(*(prefix.origins for prefix in prefixes))

    def expire(self) -> None:
        """Forgets what is too old."""
        oldest = self._now() - self._ttl_s
        self._drop(lambda old: self._prefixes[old] < oldest)

    def _use(self, prefix: Prefix) -> None:
        del self._prefixes[prefix]
        self._prefixes[prefix] = self._now()

    def _drop(self, matches: Callable[[Prefix], bool]) -> int:
        doomed = [prefix for prefix in self._prefixes if matches(prefix)]
        for prefix in doomed:
            self._remove(prefix)
        return len(doomed)

    def _remove(self, prefix: Prefix) -> None:
        del self._prefixes[prefix]
        self.size_bytes -= prefix.size_bytes


def common_length(one: Identity, other: Identity) -> int:
    """How many positions agree from the start. By halves: comparing slices is fast, comparing items is not."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _is_beginning(one: Identity, of: Identity) -> bool:
    return one == of[: len(one)]
