"""Starts the requests of one level: when others end (closed loop), or when the clock says so (open loop).

An open loop has absolute times and no limit on what is in flight, so a slow server meets the same arrivals as a fast
one. A closed loop waits for answers before it asks again: by design it asks a slow server less.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Protocol

from opsin.bench.messages import Job, Level

_MAX_PROBES_IN_FLIGHT = 4
"""A probe is a thermometer. On a server that is so slow that they pile up, more of them would be load of their own."""


class Asker(Protocol):
    """Sends requests. ``due``: the intended start, in nanoseconds."""

    async def ask(self, job: Job, due: int) -> None:
        """Returns when the answer is over."""
        ...

    def skip(self, job: Job, due: int) -> None:
        """Notes a request that is not sent."""
        ...


async def play(level: Level, clock: Callable[[], int], asker: Asker) -> None:
    """Returns when every request of the level is over. Cancelling it cancels what is in flight."""
    probing = asyncio.create_task(_probe(level, clock, asker)) if level.probes else None
    try:
        await _load(level, clock, asker)
    finally:
        if probing is not None:
            probing.cancel()
            await asyncio.wait([probing])


async def _load(level: Level, clock: Callable[[], int], asker: Asker) -> None:
    async with asyncio.TaskGroup() as group:
        if level.concurrency is None:
            for job in level.jobs:
                due = level.begin_ns + (job.due_ns or 0)
                await _until(due, clock)
                group.create_task(asker.ask(job, due))
            return
        await _until(level.begin_ns, clock)
        waiting = iter(level.jobs)
        for _ in range(level.concurrency):
            group.create_task(_in_turn(waiting, level.stop_ns, clock, asker))


async def _in_turn(waiting: Iterator[Job], stop_ns: int | None, clock: Callable[[], int], asker: Asker) -> None:
    for job in waiting:
        now = clock()
        if stop_ns is not None and now >= stop_ns:
            return
        await asker.ask(job, now)


async def _probe(level: Level, clock: Callable[[], int], asker: Asker) -> None:
    """Probes on their own schedule until cancelled; those in flight then are cancelled too."""
    in_flight = set[asyncio.Task[None]]()
    async with asyncio.TaskGroup() as group:
        for number, job in enumerate(itertools.cycle(level.probes)):
            due = level.begin_ns + number * level.probe_gap_ns
            await _until(due, clock)
            if len(in_flight) >= _MAX_PROBES_IN_FLIGHT:
                asker.skip(job, due)
                continue
            task = group.create_task(asker.ask(job, due))
            in_flight.add(task)
            task.add_done_callback(in_flight.discard)


async def _until(due: int, clock: Callable[[], int]) -> None:
    await asyncio.sleep(max(0, due - clock()) / 1e9)
