"""Who keeps how much in a tier, and who goes first: accounting by scope, without the values.

A scope has a quota, and the tier a capacity; only entries of the same scope ever make room for a new one. What was used
more than once outlives what was not (a segmented LRU, as in the engine's feature cache). Knows no bytes and no place.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

PROVEN_SHARE = 0.8
"""How much of a scope's records may be such as were used more than once."""


@dataclass(slots=True)
class _Entry:
    size_bytes: int
    expires_at: float


@dataclass(slots=True)
class _Account:
    fresh: OrderedDict[str, _Entry] = field(default_factory=OrderedDict[str, _Entry])
    proven: OrderedDict[str, _Entry] = field(default_factory=OrderedDict[str, _Entry])
    size_bytes: int = 0

    def entries(self) -> Iterator[tuple[str, _Entry]]:
        """Those that go first come first."""
        return chain(self.fresh.items(), self.proven.items())

    def get(self, record: str) -> _Entry | None:
        return self.fresh.get(record) or self.proven.get(record)


class Ledger:
    """Records of scopes: sizes, and when they expire, by ``now`` in seconds. Unless it ``evicts``, full is full."""

    def __init__(
        self, capacity_bytes: int, quota_bytes: int, *, evicts: bool = True, now: Callable[[], float] = time.time
    ) -> None:
        self._capacity_bytes = capacity_bytes
        self._quota_bytes = min(quota_bytes, capacity_bytes)
        self._evicts = evicts
        self._now = now
        self._accounts: dict[str, _Account] = {}
        self.size_bytes = 0

    def records(self, scope: str) -> tuple[str, ...]:
        """Of a scope."""
        account = self._accounts.get(scope)
        return tuple(record for record, _ in account.entries()) if account else ()

    def used(self, scope: str, record: str) -> None:
        """It was found again."""
        account = self._accounts.get(scope)
        if account is None or (entry := account.fresh.pop(record, None) or account.proven.pop(record, None)) is None:
            return
        account.proven[record] = entry
        while len(account.proven) > 1 and len(account.proven) > PROVEN_SHARE * (
            len(account.fresh) + len(account.proven)
        ):
            oldest, stepping_back = account.proven.popitem(last=False)
            account.fresh[oldest] = stepping_back

    def expired(self) -> tuple[tuple[str, str], ...]:
        """Scopes and records that are too old."""
        now = self._now()
        return tuple(
            (scope, record)
            for scope, account in self._accounts.items()
            for record, entry in account.entries()
            if entry.expires_at <= now
        )

    def victims(self, scope: str, record: str, growth_bytes: int) -> tuple[str, ...] | None:
        """Which records of the scope have to go so that ``record`` can grow; None when that would not be enough."""
        account = self._accounts.get(scope) or _Account()
        over = max(
            account.size_bytes + growth_bytes - self._quota_bytes, self.size_bytes + growth_bytes - self._capacity_bytes
        )
        victims: list[str] = []
        if over > 0 and self._evicts:
            for other, entry in account.entries():
                if over <= 0:
                    break
                if other != record:
                    victims.append(other)
                    over -= entry.size_bytes
        return tuple(victims) if over <= 0 else None

    def grow(self, scope: str, record: str, growth_bytes: int, expires_at: float) -> None:
        """A record got more; it expires when the last of it does."""
        account = self._accounts.setdefault(scope, _Account())
        entry = account.get(record)
        if entry is None:
            entry = account.fresh[record] = _Entry(0, expires_at)
        entry.size_bytes += growth_bytes
        entry.expires_at = max(entry.expires_at, expires_at)
        account.size_bytes += growth_bytes
        self.size_bytes += growth_bytes

    def remove(self, scope: str, record: str) -> bool:
        """Whether it was there."""
        account = self._accounts.get(scope)
        if account is None or (entry := account.fresh.pop(record, None) or account.proven.pop(record, None)) is None:
            return False
        account.size_bytes -= entry.size_bytes
        self.size_bytes -= entry.size_bytes
        if not account.fresh and not account.proven:
            del self._accounts[scope]
        return True
