"""The worker process as its parent sees it: spawn, load, exchange messages, end. Knows no requests."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable

from opsin.core.errors import Code, EngineError
from opsin.engine.local.config import LocalEngineConfig
from opsin.engine.local.messages import (
    HEADER_BYTES,
    FromWorker,
    Load,
    LoadFailed,
    Progress,
    Ready,
    Shutdown,
    ToWorker,
    body_length,
    decode_from_worker,
    error_from_wire,
    to_frame,
)
from opsin.telemetry import logs

logger = logging.getLogger(__name__)

CLOSE_GRACE_S = 5.0
_STDERR = 2

_FEW_SHAPES = {"LRU_CACHE_CAPACITY": "64", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64"}
"""torch on a CPU keeps what it compiled for each shape of a matrix product, up to 1024 shapes in each of two caches.
Every length of a prompt is another shape: in bfloat16 the process grew by 700 MB over the first 1600 requests, and with
64 by 60 MB. The shapes of decode stay in, as they are used all the time. What the operator sets wins."""


def _environment() -> dict[str, str]:
    return _FEW_SHAPES | dict(os.environ)


class WorkerProcess:
    """One running worker; its own session, so that Ctrl-C in the terminal reaches only the parent."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def spawn(cls) -> WorkerProcess:
        """Starts the process with one end of a socket pair and keeps the other. Knows nothing of a model yet."""
        ours, theirs = socket.socketpair()
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            process = await asyncio.create_subprocess_exec(
                # -P: a file named torch.py in the working directory must not be imported.
                *(sys.executable, "-P", "-m", "opsin.engine.local.worker"),
                *("--fd", str(theirs.fileno()), "--parent", str(os.getpid()), "--log", *logs.child_arguments()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=_STDERR,  # what libraries print must not mix with our own output
                pass_fds=(theirs.fileno(),),
                env=_environment(),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return cls(process, reader, writer)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    async def load(self, config: LocalEngineConfig, progress: Callable[[str], None]) -> Ready:
        """Raises ConfigError as the worker reports it, EngineError on a crash or after ``start_timeout_s``."""
        self.send(Load(config.model_dump_json().encode()))
        try:
            async with asyncio.timeout(config.start_timeout_s):
                return await self._ready(progress)
        except TimeoutError:
            raise EngineError(
                f"the engine did not load within start_timeout_s = {config.start_timeout_s:g} s",
                code=Code.ENGINE_START_TIMEOUT,
            ) from None

    def send(self, message: ToWorker) -> None:
        """Queues a message; one sent to a dead worker is lost, and ``receive`` tells of the death."""
        if not self._writer.is_closing():
            self._writer.write(to_frame(message))

    async def receive(self) -> FromWorker | None:
        """The next message, None when the worker is gone."""
        try:
            header = await self._reader.readexactly(HEADER_BYTES)
            return decode_from_worker(await self._reader.readexactly(body_length(header)))
        except (asyncio.IncompleteReadError, OSError):
            return None

    async def stop(self, grace_s: float = CLOSE_GRACE_S) -> None:
        """Asks the worker to leave and kills it after ``grace_s``; returns when it is gone and the socket is closed."""
        self.send(Shutdown())
        try:
            async with asyncio.timeout(grace_s):
                await self._process.wait()
        except TimeoutError:
            logger.warning("the engine process %d did not leave within %g s", self.pid, grace_s)
        finally:
            await asyncio.shield(self._end())

    async def kill(self) -> None:
        """Ends the worker at once; fine for one that is dead already."""
        await asyncio.shield(self._end())

    async def _end(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            logger.debug("the socket to the engine process was broken")

    async def _ready(self, progress: Callable[[str], None]) -> Ready:
        while True:
            match await self.receive():
                case Progress(step):
                    progress(step)
                case Ready() as ready:
                    return ready
                case LoadFailed(error):
                    raise error_from_wire(error)
                case None:
                    raise EngineError("the engine process died while loading", code=Code.ENGINE_DIED)
                case other:
                    raise AssertionError(f"{type(other).__name__} before Ready")
