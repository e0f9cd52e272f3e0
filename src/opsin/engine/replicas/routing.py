"""Which replica gets a request: arithmetic on names and loads. Knows no engine, no clock and no state.

Rendezvous hashing (Thaler and Ravishankar, 1998): a key ranks all names by a hash of both, and belongs to the first.
When a name leaves, only its keys move; when one joins, only keys that now belong to it. The load is bounded as in
"Consistent Hashing with Bounded Loads" (Mirrokni, Thorup, Zadimoghaddam, 2017): a name that has ``bound`` times the
mean or more is passed over, and its key goes to the next in the key's own order, so that what overflows is spread over
all others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_SCORE_BYTES = 8


@dataclass(frozen=True, slots=True)
class Load:
    """What a replica has not finished, or what one request adds. ``visual_tokens`` are those that somebody counted."""

    requests: int = 0
    visual_tokens: int = 0

    def __add__(self, other: Load) -> Load:
        return Load(self.requests + other.requests, self.visual_tokens + other.visual_tokens)

    def __sub__(self, other: Load) -> Load:
        return Load(self.requests - other.requests, self.visual_tokens - other.visual_tokens)

    def as_for(self, request: Load) -> int:
        """In the unit in which a request is weighed: visual tokens if it has some that are known, else requests."""
        return self.visual_tokens if request.visual_tokens else self.requests


def ranked(key: bytes, names: Iterable[str]) -> list[str]:
    """All names, the one that the key belongs to first: the same in every process, in whatever order they come."""
    return sorted(names, key=lambda name: (_score(key, name), name), reverse=True)


def choose(loads: Mapping[str, Load], request: Load, key: bytes | None, bound: float) -> str:
    """The name for a request, which is one of ``loads``.

    With a key: the first in its ranking with less than ``bound`` >= 1 times the mean, the request included; some name
    always has, as the least loaded one is not above the mean. Without one: the least loaded.
    """
    if key is None:
        return min(loads, key=lambda name: (loads[name].as_for(request), loads[name].requests, name))
    total = sum(load.as_for(request) for load in loads.values()) + request.as_for(request)
    limit = bound * total / len(loads)
    return next(name for name in ranked(key, loads) if loads[name].as_for(request) < limit)


def _score(key: bytes, name: str) -> bytes:
    return hashlib.blake2b(b"%b\0%b" % (name.encode(), key), digest_size=_SCORE_BYTES).digest()
