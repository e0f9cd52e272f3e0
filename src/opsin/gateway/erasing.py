"""Deletion that deletes: a picture of a tenant, or all of them, out of every place that opsin or its engine has.

First a tombstone, so that work in flight brings nothing back; then every tier, the files, the engine; then the other
gateways. Where an engine keeps what it cannot delete, the tenant gets another salt there; one that heeds
salts never finds again what it keeps. Knows no HTTP.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from opsin.cache.files import FileShelf
from opsin.cache.journal import Deletion
from opsin.cache.keys import Scopes
from opsin.cache.store import Store
from opsin.cache.tombstones import Tombstones
from opsin.cache.urls import UrlMemory
from opsin.core.erasure import PurgeOutcome
from opsin.core.errors import OpsinError
from opsin.engine.api import Engine
from opsin.gateway.served import ServedModels
from opsin.telemetry.logs import fields
from opsin.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

_BADNESS = (PurgeOutcome.NONE, PurgeOutcome.ERASED, PurgeOutcome.UNREACHABLE)
FILES, REPLICAS = "files", "replicas"


class Others(Protocol):
    """The other gateways."""

    async def tell(self, deletion: Deletion) -> PurgeOutcome:
        """Whether all of them have done it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Eraser:
    """``others`` is None where there are none."""

    scopes: Scopes
    tombstones: Tombstones
    store: Store
    files: FileShelf
    urls: UrlMemory
    models: ServedModels
    metrics: Metrics
    others: Others | None = None

    async def erase(self, scope: str, sha256: str | None, *, files: bool = True) -> Mapping[str, PurgeOutcome]:
        """Everything of a picture, or of a scope; by tier what became of it. Its ``files`` only where asked to."""
        record = self.scopes.record(scope, sha256) if sha256 is not None else None
        self.tombstones.bury(scope, record)
        self.urls.purge(scope, record)
        report = dict(await self.store.purge(scope, record))
        if files:
            report[FILES] = await self.files.purge(scope, sha256)
        of_engine = await self._engine(scope, record)
        report |= of_engine
        salt = self.scopes.rotate(scope) if PurgeOutcome.UNREACHABLE in of_engine.values() else None
        if self.others is not None:
            report[REPLICAS] = await self.others.tell(Deletion(scope, record, salt))
        for tier, outcome in report.items():
            self.metrics.purges.labels(tier, outcome).inc()
        return report

    async def apply(self, deletion: Deletion) -> None:
        """What another gateway did, done to this one's own."""
        scope, record = deletion.scope, deletion.record
        if deletion.is_lifted and record is not None:
            self.tombstones.lift(scope, record)
            return
        self.tombstones.bury(scope, record)
        self.urls.purge(scope, record)
        await self.store.purge_local(scope, record)
        unreachable = PurgeOutcome.UNREACHABLE in (await self._engine(scope, record)).values()
        if deletion.salt is not None or unreachable:
            self.scopes.rotate(scope, deletion.salt)

    async def allow(self, scope: str, sha256: str) -> None:
        """A picture that the tenant uploads again may be kept again."""
        record = self.scopes.record(scope, sha256)
        if not self.tombstones.covers(scope, record):
            return
        self.tombstones.lift(scope, record)
        await self.store.lift(scope, record)
        if self.others is not None:
            await self.others.tell(Deletion(scope, record, is_lifted=True))

    async def _engine(self, scope: str, record: str | None) -> dict[str, PurgeOutcome]:
        """The worst of all engines, and of all names under which they may know the scope."""
        worst: dict[str, PurgeOutcome] = {}
        asked = [(model.engine, name) for model in self.models for name in self.scopes.all_salted(scope)]
        for engine, name in asked:
            for tier, outcome in (await _purged(engine, name, record)).items():
                worst[tier] = max(worst.get(tier, PurgeOutcome.NONE), outcome, key=_BADNESS.index)
        return worst


async def _purged(engine: Engine, scope: str, record: str | None) -> Mapping[str, PurgeOutcome]:
    try:
        return (await engine.purge(scope, record)).tiers
    except OpsinError as error:
        logger.warning("%s", fields(event="engine_not_purged", code=error.code))
        return {"engine": PurgeOutcome.UNREACHABLE}
