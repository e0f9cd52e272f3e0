"""One run from beginning to end: ask the server about itself, make the workload, run the phases, tell how it ended.

Whatever happens once the first line is written, the last one is written too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import closing

from opsin.bench.bodies import BodyMaker, Spool
from opsin.bench.config import BenchConfig
from opsin.bench.fleet import WorkerDied
from opsin.bench.phases import Phases
from opsin.bench.pictures import source_of
from opsin.bench.prepared import prepare
from opsin.bench.provenance import provenance
from opsin.bench.record import End, Header, Line
from opsin.bench.schedule import schedules
from opsin.bench.server import Server
from opsin.bench.watcher import Watcher
from opsin.bench.workload import plan


async def run(
    config: BenchConfig,
    write: Callable[[Line], None],
    watcher: Watcher,
    *,
    interrupt: asyncio.Event,
    command: Sequence[str] = (),
) -> None:
    """Measures, and writes every line. Setting ``interrupt`` ends it early.

    Raises:
        ConfigError: it cannot be measured as asked; no line was written.
    """
    source = source_of(config)
    async with Server.of(config) as server:
        facts, notes = await server.facts()
        due = schedules(config)
        workload = plan(config, [len(level) for level in due], source.available)
        with closing(Spool()) as spool:
            maker = BodyMaker(config, facts, source, spool)
            prepared = await prepare(maker, workload, watcher, interrupt)
            header = Header(
                zero=time.monotonic_ns(),
                config=config.without_secrets(),
                server=facts,
                provenance=provenance(command),
                dataset=prepared.dataset,
                notes=notes,
            )
            write(header)
            phases = Phases(config, header.zero, server, prepared, write, watcher, interrupt)
            try:
                await phases.play(workload, due, spool)
            except WorkerDied as error:
                write(End(reason="failed", message=str(error)))
            else:
                write(End(reason="interrupted" if interrupt.is_set() else "complete"))
