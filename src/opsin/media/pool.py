"""Worker processes that decode pictures, so that a picture can crash, hang or bloat only a worker.

Each worker has one socket and one task at a time. A worker that did not answer its task, for whatever reason (crash,
timeout, a cancelled caller), is never used again but killed and replaced, so an answer can never belong to another
picture. Requests wait for a worker in the order in which they came. The pool knows neither models nor limits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from opsin.core.errors import Code, ConfigError, Overloaded
from opsin.media.config import MediaConfig
from opsin.media.messages import (
    ANSWER_OVERHEAD_BYTES,
    LENGTH,
    Answer,
    Done,
    Failed,
    Lifted,
    LiftTask,
    Ready,
    RenderTask,
    Task,
    decode_answer,
    encode,
)
from opsin.media.types import MediaBytes, RenderedPicture
from opsin.media.undecodable import Failure, undecodable
from opsin.telemetry import logs
from opsin.vision.plan import RenderRecipe, Size

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 60.0  # a worker starts in 0.1 to 0.2 s; a machine that is busy elsewhere may take long
_EXIT_S = 1.0  # from the end of its socket to the end of a process
_CPU_MARGIN_S = 2  # the wall clock of the pool comes first; the CPU limit is for a worker whose pool is stuck
_LINKER_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


class _WorkerLost(ConnectionError):
    """The worker closed its socket or said something that no worker says."""


@dataclass(frozen=True, slots=True)
class _Job:
    """One task, how long its answer may be and what it must be; the log and errors name it by the last two."""

    task: Task
    data: bytes
    max_bytes: int
    fits: Callable[[Answer], bool]
    subject: str
    param: str | None


class RenderPool:
    """Renders pictures in ``config.render_workers`` processes. Lives in one event loop, from ``start`` to ``close``."""

    def __init__(self, config: MediaConfig) -> None:
        self._config = config
        self._slots: tuple[_Slot, ...] = ()
        self._idle: deque[_Slot] = deque()
        self._num_idle = asyncio.Semaphore(0)  # hands out in the order of waiting
        self._replacing: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Processes that are alive now, e.g. to measure their memory."""
        return tuple(slot.worker.pid for slot in self._slots if slot.worker)

    async def start(self) -> None:
        """Starts the workers and waits until all have decoded a picture. Raises ConfigError when they cannot run."""
        self._slots = tuple(_Slot() for _ in range(self._config.render_workers))
        outcomes = await asyncio.gather(*(self._fill_first(slot) for slot in self._slots), return_exceptions=True)
        failures = [outcome for outcome in outcomes if outcome is not None]
        if failures:
            await self.close()
            raise ConfigError("The processes that decode pictures do not start on this machine.") from failures[0]

    async def close(self) -> None:
        """Ends all workers and waits until they are gone. Requests that still run or wait raise. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        for slot in self._slots:
            if slot.worker:
                slot.worker.kill()
        for _ in self._slots:  # whoever uses or awaits a slot gives it back first
            await self._num_idle.acquire()
        await asyncio.gather(*(self._empty(slot) for slot in self._slots))
        self._slots = ()
        self._idle.clear()

    async def render(self, media: MediaBytes, recipe: RenderRecipe) -> RenderedPicture:
        """Decodes the picture and executes the recipe.

        Raises:
            MediaUndecodable: the picture is damaged, or it killed its worker, or took too much time or memory.
            Overloaded: no worker can be started, or somebody else killed this one, or the pool is closed.
            ValueError: the recipe does not fit together; a bug of its author.
        """
        num_tiles = _num_tiles(recipe, media.header.upright)
        num_bytes = num_tiles * recipe.tile.width * recipe.tile.height * 3
        return RenderedPicture(await self._decode(media, recipe, num_bytes), num_tiles, recipe.tile)

    async def verify(self, media: MediaBytes) -> None:
        """Decodes the picture completely and forgets it: for engines that get the original bytes. Raises as render."""
        await self._decode(media, None, num_bytes=0)

    async def lift(self, body: bytes, marker: str) -> Lifted:
        """Takes the large pictures out of a request body, see :mod:`opsin.media.lift`.

        Raises:
            MediaUndecodable: the body killed its worker, or took too much time or memory.
            Overloaded: as render.
        """
        task = LiftTask(len(body), marker, self._config.max_image_bytes)
        # What is lifted is smaller than its base64; the rest is for hashes and headers, see MIN_URL_BYTES.
        max_bytes = len(body) * 9 // 8 + ANSWER_OVERHEAD_BYTES
        answer = await self._run(_Job(task, body, max_bytes, lambda answer: isinstance(answer, Lifted), "body", None))
        assert isinstance(answer, Lifted)
        return answer

    async def _decode(self, media: MediaBytes, recipe: RenderRecipe | None, num_bytes: int) -> bytes:
        """The pixels, exactly ``num_bytes``."""
        task = RenderTask(len(media.data), media.header, recipe)
        subject = f"{media.header.format} with sha256 {media.sha256}"
        answer = await self._run(
            _Job(
                task,
                media.data,
                num_bytes + ANSWER_OVERHEAD_BYTES,
                lambda answer: isinstance(answer, Done) and len(answer.pixels) == num_bytes,
                subject,
                media.param,
            )
        )
        assert isinstance(answer, Done)
        return answer.pixels

    async def _run(self, job: _Job) -> Answer:
        """The answer of the next free worker; one that fits the job."""
        slot = await self._take()
        try:
            answer = await self._answer(await self._worker_of(slot), job)
        finally:
            self._give_back(slot)
        if isinstance(answer, Failed):
            raise undecodable(answer.failure, job.param)
        return answer

    async def _answer(self, worker: _Worker, job: _Job) -> Answer:
        try:
            async with asyncio.timeout(self._config.render_timeout_s):
                return await worker.run(job)
        except TimeoutError:
            raise undecodable(Failure.TIMEOUT, job.param) from None
        except OSError:
            if self._closed:
                raise _closed_error() from None
            logger.warning("A render worker died on a %s", job.subject)
            if await worker.was_killed():
                raise Overloaded(
                    "The process that decoded the picture was killed.", code=Code.RENDER_WORKER_KILLED, retry_after_s=1
                ) from None
            raise undecodable(Failure.UNDECODABLE, job.param) from None

    async def _take(self) -> _Slot:
        if self._closed:
            raise _closed_error()
        await self._num_idle.acquire()
        slot = self._idle.popleft()
        if self._closed:
            self._put_back(slot)
            raise _closed_error()
        return slot

    def _give_back(self, slot: _Slot) -> None:
        """Never waits, so that it also works while the caller is being cancelled."""
        worker = slot.worker
        if worker is not None and worker.is_spent(self._config.worker_max_tasks):
            worker.kill()
            if not self._closed:
                task = asyncio.get_running_loop().create_task(self._replace(slot))
                self._replacing.add(task)
                task.add_done_callback(self._replacing.discard)
                return
        self._put_back(slot)

    def _put_back(self, slot: _Slot) -> None:
        self._idle.append(slot)
        self._num_idle.release()

    async def _fill_first(self, slot: _Slot) -> None:
        try:
            await self._fill(slot)
        finally:
            self._put_back(slot)

    async def _replace(self, slot: _Slot) -> None:
        """On failure the slot goes back empty and the next request tries again."""
        try:
            await self._empty(slot)
            if not self._closed:
                await self._fill(slot)
        except OSError:
            logger.exception("A render worker could not be replaced")
        finally:
            self._put_back(slot)

    async def _worker_of(self, slot: _Slot) -> _Worker:
        """The slot's worker, or a new one when it died while idle: no picture is to blame for that."""
        if slot.worker is not None and slot.worker.is_quiet():
            return slot.worker
        try:
            await self._empty(slot)
            return await self._fill(slot)
        except OSError:
            logger.exception("A render worker could not be started")
            raise Overloaded("No process for decoding pictures can be started.", retry_after_s=5) from None

    async def _fill(self, slot: _Slot) -> _Worker:
        slot.worker = await _Worker.spawn(self._config)
        return slot.worker

    async def _empty(self, slot: _Slot) -> None:
        worker, slot.worker = slot.worker, None
        if worker is not None:
            await worker.end()


class _Slot:
    """A place for one worker; empty while it is being replaced."""

    worker: _Worker | None = None


class _Worker:
    """A worker process as its parent sees it."""

    def __init__(self, process: asyncio.subprocess.Process, channel: socket.socket) -> None:
        self._process = process
        self._channel = channel
        self._busy = False
        self._num_tasks = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    async def spawn(cls, config: MediaConfig) -> _Worker:
        """A worker that is ready. Raises OSError."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                process = await _start_process(theirs.fileno(), config)
        except BaseException:
            ours.close()
            raise
        worker = cls(process, ours)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                answer = await worker._receive(ANSWER_OVERHEAD_BYTES)
            if not isinstance(answer, Ready):
                raise _WorkerLost
        except BaseException:
            await asyncio.shield(worker.end())
            raise
        return worker

    async def run(self, job: _Job) -> Answer:
        """Raises OSError when the worker dies or answers anything but a failure or what fits the job."""
        self._busy = True
        await self._send(encode(job.task), job.data)
        answer = await self._receive(job.max_bytes)
        if not isinstance(answer, Failed) and not job.fits(answer):
            raise _WorkerLost
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

    async def was_killed(self) -> bool:
        """By SIGKILL, as the kernel does when memory is short: a picture's own crash ends in other signals."""
        try:
            async with asyncio.timeout(_EXIT_S):
                return await self._process.wait() == -signal.SIGKILL
        except TimeoutError:
            return False

    async def end(self) -> None:
        """Ends the process, waits for it and closes the socket."""
        self.kill()
        try:
            await self._process.wait()
        finally:
            self._channel.close()

    async def _send(self, message: bytes, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._channel, LENGTH.pack(len(message)) + message)
        await loop.sock_sendall(self._channel, memoryview(data))

    async def _receive(self, max_bytes: int) -> Answer:
        (length,) = LENGTH.unpack(await self._read(LENGTH.size))
        if length > max_bytes:
            raise _WorkerLost
        try:
            return decode_answer(await self._read(length))
        except msgspec.MsgspecError:
            raise _WorkerLost from None

    async def _read(self, num_bytes: int) -> bytearray:
        loop = asyncio.get_running_loop()
        buffer = bytearray(num_bytes)
        rest = memoryview(buffer)
        while rest:
            received = await loop.sock_recv_into(self._channel, rest)
            if received == 0:
                raise _WorkerLost
            rest = rest[received:]
        return buffer


async def _start_process(descriptor: int, config: MediaConfig) -> asyncio.subprocess.Process:
    """Finds its modules where this process does, and nowhere else (``-P``: not in the working directory).

    In a session of its own, so that Ctrl-C reaches only this process, which may still have requests to finish.
    """
    cpu_s = int(config.render_timeout_s) + _CPU_MARGIN_S
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-s", "-m", "opsin.media.worker"),
        *(str(descriptor), str(config.worker_memory_bytes), str(cpu_s), *logs.child_arguments()),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        pass_fds=(descriptor,),
        env=_worker_environment(),
        start_new_session=True,
    )


def _worker_environment() -> dict[str, str]:
    """No secrets of the server, and the linker's paths: not settings of ours, but some interpreters need them."""
    kept = {name: os.environ[name] for name in _LINKER_VARIABLES if name in os.environ}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _num_tiles(recipe: RenderRecipe, upright: Size) -> int:
    """Tiles that the recipe yields. Raises ValueError when its last size is not that of its tiles together."""
    last = recipe.resizes[-1] if recipe.resizes else upright
    columns, rows = max(1, recipe.columns), max(1, recipe.rows)
    if last != Size(columns * recipe.tile.width, rows * recipe.tile.height):
        raise ValueError(f"{recipe} does not fit a picture of {upright}")
    return rows * columns + int(recipe.overview)


def _closed_error() -> Overloaded:
    return Overloaded("The server is shutting down.", retry_after_s=5)
