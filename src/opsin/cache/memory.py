"""The tier in this process's memory. Values are kept as they are, without a copy."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from opsin.cache.ledger import Ledger
from opsin.cache.tier import Address, Value
from opsin.cache.tombstones import Tombstones
from opsin.core.erasure import PurgeOutcome


@dataclass(frozen=True, slots=True)
class _Kept:
    value: Value
    expires_at: float


class MemoryTier:
    """See Tier."""

    name = "memory"
    is_shared = False

    def __init__(
        self,
        capacity_bytes: int,
        quota_bytes: int,
        tombstones: Tombstones,
        *,
        evicts: bool = True,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._ledger = Ledger(capacity_bytes, quota_bytes, evicts=evicts, now=now)
        self._tombstones = tombstones
        self._now = now
        self._records: dict[tuple[str, str], dict[str, _Kept]] = {}

    @property
    def size_bytes(self) -> int:
        """Of all values."""
        return self._ledger.size_bytes

    async def get(self, at: Address) -> Value | None:
        """See Tier."""
        kept = self._records.get((at.scope, at.record), {}).get(at.field)
        if kept is None or kept.expires_at <= self._now():
            return None
        self._ledger.used(at.scope, at.record)
        return kept.value

    async def put(self, at: Address, value: Value, ttl_s: float) -> bool:
        """See Tier. Nothing waits between the look at the tombstones and the entry."""
        self._remove_expired()
        if self._tombstones.covers(at.scope, at.record):
            return False
        old = self._records.get((at.scope, at.record), {}).get(at.field)
        growth = value.size_bytes - (old.value.size_bytes if old else 0)
        victims = self._ledger.victims(at.scope, at.record, growth)
        if victims is None:
            return False
        for victim in victims:
            self._remove(at.scope, victim)
        expires_at = self._now() + ttl_s
        self._records.setdefault((at.scope, at.record), {})[at.field] = _Kept(value, expires_at)
        self._ledger.grow(at.scope, at.record, growth, expires_at)
        return True

    async def fields(self, scope: str, record: str) -> dict[str, Value]:
        """See Tier."""
        now = self._now()
        kept = dict(self._records.get((scope, record), {}))
        for name in [name for name, one in kept.items() if one.expires_at <= now]:
            del kept[name]
            await self.drop(Address(scope, record, name))
        return {name: one.value for name, one in kept.items()}

    async def drop(self, at: Address) -> None:
        """See Tier."""
        record = self._records.get((at.scope, at.record), {})
        kept = record.pop(at.field, None)
        if kept is not None:
            self._ledger.grow(at.scope, at.record, -kept.value.size_bytes, 0)
        if not record:
            self._remove(at.scope, at.record)

    async def purge(self, scope: str, record: str | None) -> PurgeOutcome:
        """See Tier."""
        doomed = self._ledger.records(scope) if record is None else (record,)
        erased = [self._remove(scope, one) for one in doomed]
        return PurgeOutcome.ERASED if any(erased) else PurgeOutcome.NONE

    def alone(self, scope: str) -> AbstractAsyncContextManager[None]:
        """See Tier. No other process has it."""
        return nullcontext()

    async def expire(self) -> None:
        """See Tier."""
        self._remove_expired()

    async def lift(self, scope: str, record: str) -> None:
        """See Tier. There is none."""

    async def close(self) -> None:
        """See Tier."""
        self._records.clear()

    def _remove_expired(self) -> None:
        for scope, record in self._ledger.expired():
            self._remove(scope, record)

    def _remove(self, scope: str, record: str) -> bool:
        self._records.pop((scope, record), None)
        return self._ledger.remove(scope, record)
