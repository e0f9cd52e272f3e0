"""The worker processes as the run sees them: spawn, hand out work, collect what they saw, end."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator, Sequence

from opsin.bench.bodies import Spool
from opsin.bench.messages import FromWorker, Level, LevelDone, Ready, Seen, Setup, Stop, receive_from_worker, to_frame

_CLOSE_GRACE_S = 2.0


class WorkerDied(Exception):
    """A client process ended by itself: what it had in flight is unknown."""


class Fleet:
    """All client processes of one run. Their own sessions keep a Ctrl-C in the terminal from them."""

    def __init__(self) -> None:
        self._processes: list[asyncio.subprocess.Process] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._listeners: list[asyncio.Task[None]] = []
        self._inbox: asyncio.Queue[FromWorker | None] = asyncio.Queue()
        self._busy = 0  # workers in the current level

    async def start(self, setups: Sequence[Setup], spool: Spool) -> None:
        """Raises WorkerDied when one does not come up."""
        for setup in setups:
            await self._spawn(setup, spool)
        for _ in setups:
            if not isinstance(await self._inbox.get(), Ready):
                raise WorkerDied("a client process did not start")

    async def play(self, levels: Sequence[Level]) -> AsyncGenerator[Seen | LevelDone, None]:
        """One share for each of the first workers; ends when all are through. Raises WorkerDied."""
        for writer, level in zip(self._writers, levels, strict=False):
            writer.write(to_frame(level))
        self._busy = len(levels)
        while self._busy:
            match await self._inbox.get():
                case Seen() as seen:
                    yield seen
                case LevelDone() as done:
                    self._busy -= 1
                    yield done
                case Ready() | None:
                    raise WorkerDied("a client process died")

    def stop(self) -> None:
        """Ends the current level early: ``play`` then gives what was in flight as cancelled."""
        for writer in self._writers:
            writer.write(to_frame(Stop()))

    async def close(self) -> None:
        """Ends all processes."""
        for listener in self._listeners:
            listener.cancel()
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(_end(process) for process in self._processes))

    async def _spawn(self, setup: Setup, spool: Spool) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            self._writers.append(writer)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "opsin.bench.worker"),
                *("--socket", str(theirs.fileno()), "--spool", str(spool.fd)),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), spool.fd),
                start_new_session=True,
            )
        self._processes.append(process)
        self._listeners.append(asyncio.create_task(self._listen(reader)))
        writer.write(to_frame(setup))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while (message := await receive_from_worker(reader)) is not None:
            self._inbox.put_nowait(message)
        self._inbox.put_nowait(None)


async def _end(process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(_CLOSE_GRACE_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
