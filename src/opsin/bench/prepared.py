"""All requests of a run, encoded: what workers are told of them, and what records keep of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from opsin.bench.bodies import Body, BodyMaker
from opsin.bench.messages import Job
from opsin.bench.record import Record, Sight
from opsin.bench.watcher import Watcher
from opsin.bench.workload import Ask, Workload


class Prepared:
    """Bodies by the number of their request in the run, which is also the id of its record."""

    def __init__(self, workload: Workload, bodies: Sequence[Body], dataset: str) -> None:
        self.dataset = dataset
        self._asks = tuple(workload.asks)
        self._bodies = bodies
        self._numbers = {id(ask): number for number, ask in enumerate(self._asks)}

    def job(self, ask: Ask, *, level: int, due_ns: int | None = None) -> Job:
        """What a worker is told of one request."""
        number = self._numbers[id(ask)]
        spans = [(span.offset, span.num_bytes) for span in self._bodies[number].spans]
        return Job(id=number, kind=ask.kind, level=level, spans=spans, due_ns=due_ns)

    def record(self, sight: Sight) -> Record:
        """What was asked, beside what was seen."""
        body = self._bodies[sight.id]
        seen: dict[str, Any] = msgspec.structs.asdict(sight)
        return Record(
            **seen,
            pictures=list(body.pictures),
            body_bytes=body.num_bytes,
            requested_out=self._asks[sight.id].output_len,
        )


async def prepare(maker: BodyMaker, workload: Workload, watcher: Watcher, interrupt: asyncio.Event) -> Prepared:
    """Makes pictures, then bodies, and gives way to signals in between. An interrupted one is not fit for a run."""
    for done, _ in enumerate(maker.draw(workload.pictures), 1):
        watcher.preparing(done, len(workload.pictures))
        await asyncio.sleep(0)
        if interrupt.is_set():
            return Prepared(workload, (), maker.dataset)
    return Prepared(workload, maker.bodies(workload.asks), maker.dataset)
