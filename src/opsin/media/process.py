"""One render worker as its parent sees it: a process, a socket, one task at a time.

Its answers are a stranger's data: bounded, typed, and refused unless they fit the task.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from opsin.media.config import MediaConfig
from opsin.media.confine import Level
from opsin.media.messages import (
    ANSWER_OVERHEAD_BYTES,
    LENGTH,
    Answer,
    Failed,
    Ready,
    Setup,
    Task,
    decode_answer,
    encode,
)
from opsin.telemetry import logs

_START_TIMEOUT_S = 60.0  # a worker starts in 0.1 to 0.2 s; a machine that is busy elsewhere may take long
_EXIT_S = 1.0  # from the end of its socket to the end of a process
_CPU_MARGIN_S = 2  # the wall clock of the pool comes first; the CPU limit is for a worker whose pool is stuck
_LINKER_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


class WorkerLost(ConnectionError):
    """The worker closed its socket or said something that no worker says."""


class NotConfined(OSError):
    """This machine does not let a worker confine itself as far as the operator requires."""


@dataclass(frozen=True, slots=True)
class Job:
    """One task, how long its answer may be and what it must be; the log and errors name it by the last two."""

    task: Task
    data: bytes
    max_bytes: int
    fits: Callable[[Answer], bool]
    subject: str
    param: str | None


class WorkerProcess:
    """A worker process as its parent sees it."""

    level = Level.PROCESS
    """How far it is confined, once it is ready."""

    def __init__(self, process: asyncio.subprocess.Process, channel: socket.socket) -> None:
        self._process = process
        self._channel = channel
        self._busy = False
        self._num_tasks = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    async def spawn(cls, config: MediaConfig) -> WorkerProcess:
        """A worker that is ready. Raises OSError, NotConfined if it is less confined than the operator requires."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                process = await _start_process(theirs.fileno())
        except BaseException:
            ours.close()
            raise
        worker = cls(process, ours)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                worker.level = await worker._set_up(config)
            if config.require_sandbox and worker.level < Level.SECCOMP:
                raise NotConfined
        except BaseException:
            await asyncio.shield(worker.end())
            raise
        return worker

    async def _set_up(self, config: MediaConfig) -> Level:
        """What the worker says of itself can be believed: it has seen no stranger's picture yet."""
        cpu_s = int(config.render_timeout_s) + _CPU_MARGIN_S
        setup = Setup(config.worker_memory_bytes, cpu_s, config.formats, config.render_mode)
        await self._send(encode(setup))
        answer = await self._receive(ANSWER_OVERHEAD_BYTES)
        if not isinstance(answer, Ready):
            raise WorkerLost
        return answer.level

    async def run(self, job: Job) -> Answer:
        """Raises OSError when the worker dies or answers anything but a failure or what fits the job."""
        self._busy = True
        await self._send(encode(job.task), job.data)
        answer = await self._receive(job.max_bytes)
        if not isinstance(answer, Failed) and not job.fits(answer):
            raise WorkerLost
        self._busy = False
        self._num_tasks += 1
        return answer

    def is_quiet(self) -> bool:
        """Alive and silent: an idle worker has nothing to say, so one that says something is not trusted with more."""
        try:
            self._channel.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def is_spent(self, max_tasks: int) -> bool:
        """Left without an answer, or old enough."""
        return self._busy or self._num_tasks >= max_tasks

    def kill(self) -> None:
        """Ends the process; its socket stays open, because somebody may still be reading from it.

        Not by ``Process.kill``, which may reap the process before the event loop's own watcher can.
        """
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    async def ended_by(self) -> int | None:
        """The number of the signal that ended it; None if there was none or it still lives."""
        try:
            async with asyncio.timeout(_EXIT_S):
                status = await self._process.wait()
        except TimeoutError:
            return None
        return -status if status < 0 else None

    async def end(self) -> None:
        """Ends the process, waits for it and closes the socket."""
        self.kill()
        try:
            await self._process.wait()
        finally:
            self._channel.close()

    async def _send(self, message: bytes, data: bytes = b"") -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._channel, LENGTH.pack(len(message)) + message)
        await loop.sock_sendall(self._channel, memoryview(data))

    async def _receive(self, max_bytes: int) -> Answer:
        (length,) = LENGTH.unpack(await self._read(LENGTH.size))
        if length > max_bytes:
            raise WorkerLost
        try:
            return decode_answer(await self._read(length))
        except msgspec.MsgspecError:
            raise WorkerLost from None

    async def _read(self, num_bytes: int) -> bytearray:
        loop = asyncio.get_running_loop()
        buffer = bytearray(num_bytes)
        rest = memoryview(buffer)
        while rest:
            received = await loop.sock_recv_into(self._channel, rest)
            if received == 0:
                raise WorkerLost
            rest = rest[received:]
        return buffer


async def _start_process(descriptor: int) -> asyncio.subprocess.Process:
    """Finds its modules where this process does, and nowhere else (``-P``: not in the working directory).

    In a session of its own, so that Ctrl-C reaches only this process, which may still have requests to finish.
    """
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-s", "-m", "opsin.media.worker"),
        *(str(descriptor), *logs.child_arguments()),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        pass_fds=(descriptor,),
        env=worker_environment(),
        start_new_session=True,
    )


def worker_environment() -> dict[str, str]:
    """No secrets of the server, and the linker's paths: not settings of ours, but some interpreters need them."""
    kept = {name: os.environ[name] for name in _LINKER_VARIABLES if name in os.environ}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
