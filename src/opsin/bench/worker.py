"""A client process: asks what it is told to ask, when it is told to, and reports what it saw.

Started by the run as ``python -m opsin.bench.worker --socket FD --spool FD``. It does nothing else while requests are
in flight: bodies lie encoded in the spool, nothing is printed, the garbage collector rests. It ends with the run.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import mmap
import os
import signal
import socket
import time
from collections.abc import Callable

from opsin.bench.client import Client
from opsin.bench.dispatch import play
from opsin.bench.http import Endpoint
from opsin.bench.lag import LagProbe
from opsin.bench.messages import (
    FromWorker,
    Job,
    Level,
    LevelDone,
    Ready,
    Seen,
    Setup,
    Stop,
    receive_by_worker,
    to_frame,
)
from opsin.bench.record import Kind, Outcome, Sight, WorkerHealth


class Worker:
    """One process's share of a run."""

    def __init__(self, setup: Setup, spool: memoryview, send: Callable[[FromWorker], None]) -> None:
        self._setup = setup
        self._spool = spool
        self._send = send
        self._client = Client(
            Endpoint.of(setup.url),
            self.clock,
            api_key=setup.api_key,
            timeout_s=setup.timeout_s,
            demand_length=setup.demand_length,
        )

    def clock(self) -> int:
        """Nanoseconds since the run's zero."""
        return time.monotonic_ns() - self._setup.zero_ns

    async def level(self, level: Level) -> None:
        """Runs one level and reports its end, also when it is cancelled."""
        lag = LagProbe(self.clock)
        asker = _Asker(self._setup, self._client, self._spool, self.clock, lag, self._send)
        probing = asyncio.create_task(lag.run())
        wall, cpu = time.monotonic(), time.process_time()
        gc.collect()
        gc.disable()
        try:
            await play(level, self.clock, asker)
        finally:
            gc.enable()
            probing.cancel()
            health = WorkerHealth(
                worker=self._setup.worker,
                wall_s=time.monotonic() - wall,
                cpu_s=time.process_time() - cpu,
                lags_us=lag.lags_us,
            )
            self._send(LevelDone(health))

    def close(self) -> None:
        """Closes its connections."""
        self._client.close()


class _Asker:
    """Sends the requests of one level and reports each."""

    def __init__(
        self,
        setup: Setup,
        client: Client,
        spool: memoryview,
        clock: Callable[[], int],
        lag: LagProbe,
        send: Callable[[FromWorker], None],
    ) -> None:
        self._setup = setup
        self._client = client
        self._spool = spool
        self._clock = clock
        self._lag = lag
        self._send = send

    async def ask(self, job: Job, due: int) -> None:
        """See Asker. One that the client turns to too late is not sent: it would only be part of a burst."""
        if self._clock() - due > self._setup.start_tolerance_s * 1e9:
            self.skip(job, due)
            return
        sight = self._sight(job, due)
        body = [self._spool[at : at + num_bytes] for at, num_bytes in job.spans]
        try:
            await self._client.ask(sight, f"bench-{job.id}", body)
        finally:
            sight.loop_lag_ns = self._lag.worst_since(due)
            if sight.outcome is not Outcome.CANCELLED or job.kind is not Kind.PROBE:  # probes end with the load
                self._send(Seen(sight))

    def skip(self, job: Job, due: int) -> None:
        """See Asker."""
        sight = self._sight(job, due)
        sight.t_end = self._clock()
        self._send(Seen(sight))

    def _sight(self, job: Job, due: int) -> Sight:
        return Sight(
            id=job.id,
            kind=job.kind,
            level=job.level,
            worker=self._setup.worker,
            outcome=Outcome.NOT_STARTED,
            t_sched=due,
            t_end=0,
        )


async def serve(control: socket.socket, spool: memoryview) -> None:
    """Follows the run's messages until it is gone."""
    reader, writer = await asyncio.open_unix_connection(sock=control)

    def send(message: FromWorker) -> None:
        writer.write(to_frame(message))

    setup = await receive_by_worker(reader)
    if not isinstance(setup, Setup):
        return
    worker = Worker(setup, spool, send)
    send(Ready())
    running: asyncio.Task[None] | None = None
    gc.freeze()
    while (message := await receive_by_worker(reader)) is not None:
        match message:
            case Level():
                running = asyncio.create_task(worker.level(message))
            case Stop():
                if running is not None:
                    running.cancel()
            case Setup():
                raise AssertionError("set up twice")
    if running is not None:
        running.cancel()
        await asyncio.wait([running])
    worker.close()
    writer.close()


def main() -> None:
    """Runs until the run closes its end of the socket."""
    parser = argparse.ArgumentParser(prog="python -m opsin.bench.worker", description=__doc__)
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--spool", type=int, required=True)
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the run's to handle
    spool = mmap.mmap(args.spool, os.fstat(args.spool).st_size, access=mmap.ACCESS_READ)
    asyncio.run(serve(socket.socket(fileno=args.socket), memoryview(spool)))


if __name__ == "__main__":
    main()
