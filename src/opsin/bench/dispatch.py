"""Starts the requests of one level: when others end (closed loop), or when the clock says so (open loop).

An open loop has absolute times and no limit on what is in flight, so a slow server meets the same arrivals as a fast
one. A closed loop waits for answers before it asks again: by design it asks a slow server less.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

from opsin.bench.messages import Job, Level

Ask = Callable[[Job, int], Awaitable[None]]
"""(job, intended start in ns) → once its answer is over."""


async def play(level: Level, clock: Callable[[], int], ask: Ask) -> None:
    """Returns when every request of the level is over. Cancelling it cancels what is in flight."""
    if not level.jobs:
        await _until(level.begin_ns, clock)
        with suppress(TimeoutError):
            async with asyncio.timeout(level.probes_only_ns / 1e9):
                await _probe(level, clock, ask)
        return
    probing = asyncio.create_task(_probe(level, clock, ask)) if level.probes else None
    try:
        await _load(level, clock, ask)
    finally:
        if probing is not None:
            probing.cancel()
            await asyncio.wait([probing])


async def _load(level: Level, clock: Callable[[], int], ask: Ask) -> None:
    async with asyncio.TaskGroup() as group:
        if level.concurrency is None:
            for job in level.jobs:
                due = level.begin_ns + (job.due_ns or 0)
                await _until(due, clock)
                group.create_task(_ask(ask, job, due))
            return
        await _until(level.begin_ns, clock)
        waiting = iter(level.jobs)
        for _ in range(level.concurrency):
            group.create_task(_one_after_another(waiting, level.stop_ns, clock, ask))


async def _one_after_another(waiting: Iterator[Job], stop_ns: int | None, clock: Callable[[], int], ask: Ask) -> None:
    for job in waiting:
        now = clock()
        if stop_ns is not None and now >= stop_ns:
            return
        await ask(job, now)


async def _probe(level: Level, clock: Callable[[], int], ask: Ask) -> None:
    """Probes on their own schedule until cancelled; those in flight then are cancelled too."""
    async with asyncio.TaskGroup() as group:
        for number, job in enumerate(itertools.cycle(level.probes)):
            due = level.begin_ns + number * level.probe_gap_ns
            await _until(due, clock)
            group.create_task(_ask(ask, job, due))


async def _ask(ask: Ask, job: Job, due: int) -> None:
    await ask(job, due)


async def _until(due: int, clock: Callable[[], int]) -> None:
    await asyncio.sleep(max(0, due - clock()) / 1e9)
