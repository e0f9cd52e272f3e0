"""All tiers as one: looks in the nearest first, keeps in each, erases in all.

No failure of a tier ever leaves this file: it is counted, and is a miss. Values are written to the slower tiers behind
the request's back; when too many wait, one more is not kept there. Lives in one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opsin.cache.keys import Scopes
from opsin.cache.memory import MemoryTier
from opsin.cache.tier import Address, Kind, Tier, TierError, Value
from opsin.core.erasure import PurgeOutcome
from opsin.telemetry.logs import fields
from opsin.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

MISS = "miss"
"""The outcome of a look that found nothing."""

_MAX_WAITING_BYTES = 128 * 2**20
"""Of values that are still to be written."""


@dataclass(frozen=True, slots=True)
class Item:
    """What is kept of a picture: of which kind, and for which recipe or settings; both together name the field."""

    scope: str
    sha256: str
    kind: Kind
    variant: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """A value, and the name of the tier that had it."""

    value: Value
    tier: str

    @property
    def outcome(self) -> str:
        """As a client is told, see MISS."""
        return f"hit-{self.tier}"


class Store:
    """Tiers, nearest first."""

    def __init__(
        self, tiers: Sequence[Tier], scopes: Scopes, metrics: Metrics, *, ttl_s: float, max_value_bytes: int
    ) -> None:
        self._tiers = tuple(tiers)
        self._scopes = scopes
        self._metrics = metrics
        self._ttl_s = ttl_s
        self._max_value_bytes = max_value_bytes
        self._writes: set[asyncio.Task[None]] = set()
        self._waiting_bytes = 0

    async def get(self, item: Item) -> Found | None:
        """What is kept; a nearer tier then has it too."""
        at = self._address(item)
        for index, tier in enumerate(self._tiers):
            try:
                value = await tier.get(at)
            except TierError as error:
                self._metrics.cache_lookup(tier.name, item.kind, "error")
                _log(tier, "get", error)
                continue
            self._metrics.cache_lookup(tier.name, item.kind, "miss" if value is None else "hit")
            if value is not None:
                for nearer in self._tiers[:index]:
                    await self._put(nearer, at, value)
                return Found(value, tier.name)
        return None

    async def put(self, item: Item, value: Value) -> None:
        """Keeps a value, in memory now and in the slower tiers soon."""
        at = self._address(item)
        for tier in self._tiers:
            if isinstance(tier, MemoryTier):
                await self._put(tier, at, value)
            elif value.size_bytes <= self._max_value_bytes:
                self._put_soon(tier, at, value)

    async def purge(self, scope: str, record: str | None) -> Mapping[str, PurgeOutcome]:
        """Erases in every tier; what is on its way there finds a tombstone."""
        return {tier.name: await self._purge(tier, scope, record) for tier in self._tiers}

    async def purge_local(self, scope: str, record: str | None) -> None:
        """The same where nobody else can do it: in this process and on its disk."""
        for tier in self._tiers:
            if not tier.is_shared:
                await self._purge(tier, scope, record)

    async def lift(self, scope: str, record: str) -> None:
        """Takes tombstones away that a tier has of its own."""
        for tier in self._tiers:
            try:
                await tier.lift(scope, record)
            except TierError as error:
                _log(tier, "lift", error)

    async def expire(self) -> None:
        """Removes what is too old, in every tier. Raises nothing."""
        for tier in self._tiers:
            try:
                await tier.expire()
            except TierError as error:
                _log(tier, "expire", error)

    async def written(self) -> None:
        """Waits for what is on its way to the slower tiers."""
        while self._writes:
            await asyncio.wait(self._writes)

    async def close(self) -> None:
        """Gives up what is still to be written."""
        for write in self._writes:
            write.cancel()
        await self.written()
        for tier in self._tiers:
            await tier.close()

    def _address(self, item: Item) -> Address:
        field = f"{item.kind}-{item.variant}" if item.variant else item.kind.value
        return Address(item.scope, self._scopes.record(item.scope, item.sha256), field)

    async def _purge(self, tier: Tier, scope: str, record: str | None) -> PurgeOutcome:
        try:
            return await tier.purge(scope, record)
        except TierError as error:
            _log(tier, "purge", error)
            return PurgeOutcome.UNREACHABLE

    async def _put(self, tier: Tier, at: Address, value: Value) -> None:
        try:
            await tier.put(at, value, self._ttl_s)
        except TierError as error:
            self._metrics.cache_write_failed(tier.name)
            _log(tier, "put", error)

    def _put_soon(self, tier: Tier, at: Address, value: Value) -> None:
        if self._waiting_bytes + value.size_bytes > _MAX_WAITING_BYTES:
            self._metrics.cache_write_failed(tier.name)
            return
        self._waiting_bytes += value.size_bytes
        task = asyncio.create_task(self._put(tier, at, value))
        self._writes.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._waiting_bytes -= value.size_bytes
            self._writes.discard(task)

        task.add_done_callback(done)


def _log(tier: Tier, call: str, error: TierError) -> None:
    logger.debug("%s", fields(event="cache_tier_failed", tier=tier.name, call=call, reason=str(error)))
