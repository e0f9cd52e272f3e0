"""The phases of a run that have requests in them: warm-up, first sight of pictures, idle probes, levels."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress

from opsin.bench.bodies import Spool
from opsin.bench.config import BenchConfig
from opsin.bench.counters import growth
from opsin.bench.fleet import Fleet
from opsin.bench.messages import Job, LevelDone, Seen, Setup
from opsin.bench.messages import Level as Share
from opsin.bench.prepared import Prepared
from opsin.bench.record import LevelEnd, Line, WorkerHealth
from opsin.bench.sampling import ServerSampler, server_pid
from opsin.bench.server import Server
from opsin.bench.watcher import Watcher
from opsin.bench.workload import Ask, Workload

_HEAD_START_NS = 200_000_000
"""Between handing out a level and its begin, so that all workers are ready."""
_OPEN_LOOP_WARMUP = 4
"""Requests at once."""
_IDLE_PROBES = 20
"""Sent before the first level, to compare with those under load."""
_NO_LEVEL = -1


class Phases:
    """One run's requests. An interrupt ends the phase in progress and skips those left."""

    def __init__(
        self,
        config: BenchConfig,
        zero_ns: int,
        server: Server,
        prepared: Prepared,
        write: Callable[[Line], None],
        watcher: Watcher,
        interrupt: asyncio.Event,
    ) -> None:
        self._config = config
        self._zero_ns = zero_ns
        self._server = server
        self._prepared = prepared
        self._write = write
        self._watcher = watcher
        self._interrupt = interrupt
        self._fleet = Fleet()
        self._pid = config.server_pid or server_pid(config.url)

    async def play(self, workload: Workload, due: Sequence[Sequence[int | None]], spool: Spool) -> None:
        """Every phase in order. Raises WorkerDied."""
        if self._interrupt.is_set():
            return
        stopping = asyncio.create_task(self._stop_when_interrupted())
        try:
            await self._fleet.start([self._setup(worker) for worker in range(self._config.workers)], spool)
            await self._warm_up("warm-up", workload.warmup)
            await self._warm_up("first sight of all pictures", workload.prime)
            await self._idle(workload.probes)
            for level, (asks, times) in enumerate(zip(workload.levels, due, strict=True)):
                await self._level(level, asks, times, workload.probes)
        finally:
            stopping.cancel()
            await self._fleet.close()

    def _clock(self) -> int:
        return time.monotonic_ns() - self._zero_ns

    def _setup(self, worker: int) -> Setup:
        config = self._config
        return Setup(
            worker=worker,
            url=config.url,
            api_key=config.api_key.get_secret_value() if config.api_key else None,
            zero_ns=self._zero_ns,
            timeout_s=config.timeout_s,
            start_tolerance_s=config.start_tolerance_s,
            demand_length=config.ignore_eos,
        )

    async def _stop_when_interrupted(self) -> None:
        await self._interrupt.wait()
        self._fleet.stop()

    async def _warm_up(self, title: str, asks: Sequence[Ask]) -> None:
        if not asks:
            return
        self._watcher.began(title, len(asks))
        jobs = [self._prepared.job(ask, level=_NO_LEVEL) for ask in asks]
        at_once = _OPEN_LOOP_WARMUP if self._config.is_open_loop else int(max(self._config.levels))
        await self._ask([Share(begin_ns=self._clock(), jobs=jobs, concurrency=min(len(jobs), at_once))])

    async def _idle(self, probes: Sequence[Ask]) -> None:
        """Probes alone."""
        if not probes:
            return
        self._watcher.began("probes alone", _IDLE_PROBES)
        gap_ns = self._probe_gap_ns()
        jobs = [
            self._prepared.job(ask, level=_NO_LEVEL, due_ns=number * gap_ns)
            for number, ask in enumerate(probes[:_IDLE_PROBES])
        ]
        await self._ask([Share(begin_ns=self._begin(), jobs=jobs)])

    async def _level(self, level: int, asks: Sequence[Ask], due: Sequence[int | None], probes: Sequence[Ask]) -> None:
        """One load, while the server is watched; then writes its end."""
        before = await self._server.counters()
        if self._interrupt.is_set():
            return
        load = self._config.levels[level]
        concurrency = None if self._config.is_open_loop else int(load)
        self._watcher.began(f"rate {load:g}/s" if concurrency is None else f"concurrency {concurrency}", len(asks))
        async with self._sampler() as sampler:
            shares = self._shares(level, asks, due, probes, concurrency)
            workers = await self._ask(shares)
        line = LevelEnd(
            level=level,
            planned=len(asks),
            concurrency=concurrency,
            rate=load if concurrency is None else None,
            t_begin=shares[0].begin_ns,
            t_end=self._clock(),
            workers=workers,
            server=sampler.samples if sampler is not None else None,
            counters=growth(before, await self._server.counters()),
        )
        self._write(line)

    def _shares(
        self,
        level: int,
        asks: Sequence[Ask],
        due: Sequence[int | None],
        probes: Sequence[Ask],
        concurrency: int | None,
    ) -> list[Share]:
        """Requests dealt to workers as their places are, so that all end together; the first one probes too."""
        config = self._config
        count = config.workers if concurrency is None else min(config.workers, concurrency)
        places = concurrency or count
        dealt: list[list[Job]] = [[] for _ in range(count)]
        for number, (ask, time_ns) in enumerate(zip(asks, due, strict=True)):
            dealt[number % places % count].append(self._prepared.job(ask, level=level, due_ns=time_ns))
        probe_jobs = [self._prepared.job(ask, level=level) for ask in probes]
        begin = self._begin()
        stops = concurrency is not None and config.duration_s is not None
        return [
            Share(
                begin_ns=begin,
                jobs=mine,
                concurrency=None if concurrency is None else len(range(worker, concurrency, count)),
                stop_ns=begin + round((config.duration_s or 0) * 1e9) if stops else None,
                probes=probe_jobs if worker == 0 else [],
                probe_gap_ns=self._probe_gap_ns(),
            )
            for worker, mine in enumerate(dealt)
        ]

    def _probe_gap_ns(self) -> int:
        return round(1e9 / (self._config.probe_rate or 1))

    def _begin(self) -> int:
        return self._clock() + _HEAD_START_NS

    @asynccontextmanager
    async def _sampler(self) -> AsyncGenerator[ServerSampler | None, None]:
        if self._pid is None:
            yield None
            return
        sampler = ServerSampler(self._pid, self._clock)
        sampling = asyncio.create_task(sampler.run())
        try:
            yield sampler
        finally:
            sampling.cancel()
            with suppress(asyncio.CancelledError):
                await sampling

    async def _ask(self, shares: Sequence[Share]) -> list[WorkerHealth]:
        """Has the requests sent and writes what comes of them."""
        if self._interrupt.is_set():
            return []
        health = list[WorkerHealth]()
        async with aclosing(self._fleet.play(shares)) as events:
            async for event in events:
                match event:
                    case Seen(sight):
                        record = self._prepared.record(sight)
                        self._write(record)
                        self._watcher.saw(record)
                    case LevelDone(done):
                        health.append(done)
        return health
