"""Vision features by key, least recently used out first, pinned while a request needs them.

Keys are opaque and never shared between scopes; values are opaque objects with a size. A lease keeps an entry usable
for its request even when it is purged or does not fit: then no later lookup finds it, and it is freed when the last
lease ends. Safe to call from several threads: the worker's reader answers Reserve while a step runs. Knows no torch.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Features:
    """What the encoder made of one picture: ``num_tokens`` positions of a prompt; ``value`` belongs to the runner."""

    value: object
    size_bytes: int
    num_tokens: int


@dataclass(slots=True)
class _Entry:
    scope: str
    features: Features
    num_leases: int = 0


class FeatureCache:
    """At most ``capacity_bytes`` of features that can be found; leased ones are never evicted."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._leases: dict[str, dict[str, _Entry]] = {}
        self._size_bytes = 0
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    @property
    def size_bytes(self) -> int:
        """Bytes that a lookup can find."""
        return self._size_bytes

    def reserve(self, request_id: str, keys: Iterable[str]) -> frozenset[str]:
        """Leases what exists of ``keys`` and returns it. This is the lookup that hits and misses count."""
        with self._lock:
            wanted = frozenset(keys)
            leased = frozenset(key for key in wanted if self._lease(request_id, key) is not None)
            self.hits += len(leased)
            self.misses += len(wanted) - len(leased)
            return leased

    def take(self, request_id: str, key: str) -> Features | None:
        """The features of ``key`` for a request: leased before, or stored since by another request and leased now."""
        with self._lock:
            entry = self._lease(request_id, key)
            return entry.features if entry else None

    def store(self, request_id: str, scope: str, key: str, features: Features) -> None:
        """Keeps features, leased to ``request_id``; what finds no room lives only as long as the lease."""
        with self._lock:
            entry = _Entry(scope=scope, features=features)
            if self._make_room(features.size_bytes):
                self._drop(key)
                self._entries[key] = entry
                self._size_bytes += features.size_bytes
            self._lease_entry(request_id, key, entry)

    def release(self, request_id: str) -> None:
        """Ends all leases of a request. Unknown ids are fine."""
        with self._lock:
            for entry in self._leases.pop(request_id, {}).values():
                entry.num_leases -= 1

    def purge(self, scope: str, key: str | None) -> int:
        """Forgets one key of a scope or all of it; returns how many entries went."""
        with self._lock:
            return self._purge(lambda name, entry: entry.scope == scope and key in (None, name))

    def _purge(self, matches: Callable[[str, _Entry], bool]) -> int:
        doomed = [key for key, entry in self._entries.items() if matches(key, entry)]
        for key in doomed:
            self._drop(key)
        return len(doomed)

    def _lease(self, request_id: str, key: str) -> _Entry | None:
        held = self._leases.get(request_id, {}).get(key)
        if held is not None:
            return held
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        self._lease_entry(request_id, key, entry)
        return entry

    def _lease_entry(self, request_id: str, key: str, entry: _Entry) -> None:
        entry.num_leases += 1
        self._leases.setdefault(request_id, {})[key] = entry

    def _make_room(self, size_bytes: int) -> bool:
        """Evicts nothing unless what can be evicted is enough."""
        needed = self._size_bytes + size_bytes - self._capacity_bytes
        victims: list[str] = []
        for key, entry in self._entries.items():
            if needed <= 0:
                break
            if entry.num_leases == 0:
                victims.append(key)
                needed -= entry.features.size_bytes
        if needed > 0:
            return False
        for key in victims:
            self._drop(key)
        return True

    def _drop(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._size_bytes -= entry.features.size_bytes
