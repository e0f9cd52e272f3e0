"""Worker processes that decode pictures, so that a picture can crash, hang or bloat only a worker.

Each worker has one socket and one task at a time. A worker that did not answer its task, for whatever reason (crash,
timeout, a cancelled caller), is never used again but killed and replaced, so an answer can never belong to another
picture. Requests wait for bytes to decode into, then for a worker, each in the order in which they came. The pool knows
no models, and of limits only that of all pictures together.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import signal
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from opsin.core.errors import Code, ConfigError, MediaError, MediaTooLarge, OpsinError, Overloaded
from opsin.media.byte_semaphore import ByteSemaphore
from opsin.media.config import MediaConfig
from opsin.media.confine import Level
from opsin.media.encoding import Encoding
from opsin.media.header import read_header
from opsin.media.limits import decoded_bytes
from opsin.media.messages import (
    ANSWER_OVERHEAD_BYTES,
    Answer,
    Done,
    Failed,
    RenderTask,
    ScaleTask,
    Written,
)
from opsin.media.process import Job, NotConfined, WorkerProcess
from opsin.media.types import ImageHeader, MediaBytes, RenderedPicture
from opsin.media.undecodable import Failure, undecodable
from opsin.vision.recipe import RenderRecipe
from opsin.vision.size import Size

logger = logging.getLogger(__name__)

_NOT_CONFINED = (
    "--require-sandbox: this machine does not filter the system calls of the processes that decode pictures (seccomp); "
    "use Linux on x86_64 or aarch64, in a container whose own profile allows seccomp, or start without the flag"
)


_BYTES_PER_WRITTEN_PIXEL = 5
"""More than noise takes: 3.01 as PNG, 2.5 as JPEG of quality 95 without subsampling, 4.2 of quality 100."""
_JPEG_BLOCK = 8
_MAX_BLOCK = 64
"""Pixels per side of a model's visual token; a picture that is smaller is enlarged to one."""
_WRITTEN_HEAD_BYTES = 4096


class RenderPool:
    """Renders pictures in ``config.render_workers`` processes. Lives in one event loop, from ``start`` to ``close``."""

    def __init__(self, config: MediaConfig) -> None:
        self._config = config
        self._slots: tuple[_Slot, ...] = ()
        self._idle: deque[_Slot] = deque()
        self._num_idle = asyncio.Semaphore(0)  # hands out in the order of waiting
        self._decoding = ByteSemaphore(config.max_decoding_bytes)
        self._replacing: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Processes that are alive now, e.g. to measure their memory."""
        return tuple(slot.worker.pid for slot in self._slots if slot.worker)

    @property
    def decoding_bytes(self) -> int:
        """Width x height x 4 of the pictures that are being decoded, or wait for a worker with their bytes in hand."""
        return self._decoding.held_bytes

    @property
    def level(self) -> Level:
        """How far the workers are confined, all of them."""
        return min((slot.worker.level for slot in self._slots if slot.worker), default=Level.PROCESS)

    async def start(self) -> None:
        """Starts the workers and waits until all have decoded a picture.

        Raises:
            ConfigError: they cannot run here, or are less confined than the operator requires.
        """
        self._slots = tuple(_Slot() for _ in range(self._config.render_workers))
        outcomes = await asyncio.gather(*(self._fill_first(slot) for slot in self._slots), return_exceptions=True)
        failures = [outcome for outcome in outcomes if outcome is not None]
        if failures:
            await self.close()
            if any(isinstance(failure, NotConfined) for failure in failures):
                raise ConfigError(_NOT_CONFINED)
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
        recipe.check(media.header.upright)
        num_bytes = recipe.num_tiles * recipe.tile.area * 3
        return RenderedPicture(await self._rendered(media, recipe, num_bytes), recipe.num_tiles, recipe.tile)

    async def verify(self, media: MediaBytes) -> None:
        """Decodes the picture completely and forgets it: for engines that get the original bytes. Raises as render."""
        await self._rendered(media, None, num_bytes=0)

    async def scale(self, media: MediaBytes, size: Size, encoding: Encoding) -> MediaBytes:
        """The first frame, upright and in RGB, resized to ``size`` and written anew: for engines that read files.

        Raises:
            MediaTooLarge: it then has more bytes than a picture may have.
            ValueError: the size is beyond the picture's own by more than one block of a model; a bug of its author.
            MediaUndecodable, Overloaded: as render.
        """
        upright = media.header.upright
        if size.width > max(upright.width, _MAX_BLOCK) or size.height > max(upright.height, _MAX_BLOCK):
            raise ValueError(f"{size} enlarges a picture of {upright}")
        header = ImageHeader(encoding.format, size, orientation=1, frames=1)
        task = ScaleTask(len(media.data), media.header, size, encoding)
        answer = await self._decode(media, task, _most_bytes(size), lambda answer: is_file_of(answer, header))
        assert isinstance(answer, Written)
        self._check_written(answer.data, header, media.param)
        sha256 = await asyncio.to_thread(hashlib.sha256, answer.data)
        return replace(media, data=answer.data, sha256=sha256.hexdigest(), header=header, base64=None)

    async def _rendered(self, media: MediaBytes, recipe: RenderRecipe | None, num_bytes: int) -> bytes:
        """The pixels, exactly ``num_bytes``."""
        task = RenderTask(len(media.data), media.header, recipe)
        answer = await self._decode(
            media, task, num_bytes, lambda answer: isinstance(answer, Done) and len(answer.pixels) == num_bytes
        )
        assert isinstance(answer, Done)
        return answer.pixels

    async def _decode(
        self, media: MediaBytes, task: RenderTask | ScaleTask, max_bytes: int, fits: Callable[[Answer], bool]
    ) -> Answer:
        """What a worker makes of the picture, ``max_bytes`` at most."""
        subject = f"{media.header.format} with sha256 {media.sha256}"
        job = Job(task, media.data, max_bytes + ANSWER_OVERHEAD_BYTES, fits, subject, media.param)
        async with self._decoding.hold(decoded_bytes(media.header)):
            return await self._run(job)

    def _check_written(self, data: bytes, header: ImageHeader, param: str) -> None:
        limit = self._config.max_image_bytes
        if len(data) > limit:
            raise MediaTooLarge(
                f"The picture, scaled to {header.size.width} x {header.size.height} and written as "
                f"{header.format.written}, has {len(data)} bytes; the limit is {limit} (max_image_bytes).",
                param=param,
            )

    async def _run(self, job: Job) -> Answer:
        """The answer of the next free worker; one that fits the job."""
        slot = await self._take()
        try:
            answer = await self._answer(await self._worker_of(slot), job)
        finally:
            self._give_back(slot)
        if isinstance(answer, Failed):
            raise undecodable(answer.failure, job.param)
        return answer

    async def _answer(self, worker: WorkerProcess, job: Job) -> Answer:
        try:
            async with asyncio.timeout(self._config.render_timeout_s):
                return await worker.run(job)
        except TimeoutError:
            raise undecodable(Failure.TIMEOUT, job.param) from None
        except OSError:
            if self._closed:
                raise _closed_error() from None
            raise _lost(await worker.ended_by(), job) from None

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

    async def _worker_of(self, slot: _Slot) -> WorkerProcess:
        """The slot's worker, or a new one when it died while idle: no picture is to blame for that."""
        if slot.worker is not None and slot.worker.is_quiet():
            return slot.worker
        try:
            await self._empty(slot)
            return await self._fill(slot)
        except OSError:
            logger.exception("A render worker could not be started")
            raise Overloaded("No process for decoding pictures can be started.", retry_after_s=5) from None

    async def _fill(self, slot: _Slot) -> WorkerProcess:
        slot.worker = await WorkerProcess.spawn(self._config)
        return slot.worker

    async def _empty(self, slot: _Slot) -> None:
        worker, slot.worker = slot.worker, None
        if worker is not None:
            await worker.end()


class _Slot:
    """A place for one worker; empty while it is being replaced."""

    worker: WorkerProcess | None = None


def _most_bytes(size: Size) -> int:
    """More than any picture of this size takes as a file; JPEG fills its blocks up."""
    width, height = (-(-side // _JPEG_BLOCK) * _JPEG_BLOCK for side in (size.width, size.height))
    return _BYTES_PER_WRITTEN_PIXEL * width * height + _WRITTEN_HEAD_BYTES


def is_file_of(answer: Answer, header: ImageHeader) -> bool:
    """Whether its container says exactly what was asked for, so that a worker cannot send on what nobody judged."""
    try:
        return isinstance(answer, Written) and read_header(answer.data, None, (header.format,)) == header
    except MediaError:
        return False


def _lost(ended_by: int | None, job: Job) -> OpsinError:
    """The error of a task whose worker died, by the signal that ended it. SIGKILL is no picture's own crash, but what
    the kernel does when memory is short."""
    if ended_by == signal.SIGSYS:
        logger.error("A render worker made a forbidden system call and was killed, on a %s", job.subject)
    else:
        logger.warning("A render worker died%s on a %s", _by(ended_by), job.subject)
    match ended_by:
        case signal.SIGKILL:
            text = "The process that decoded the picture was killed."
            return Overloaded(text, code=Code.RENDER_WORKER_KILLED, retry_after_s=1)
        case signal.SIGXCPU:
            return undecodable(Failure.TIMEOUT, job.param)
        case _:
            return undecodable(Failure.UNDECODABLE, job.param)


def _by(ended_by: int | None) -> str:
    return f" by signal {ended_by}" if ended_by else ""


def _closed_error() -> Overloaded:
    return Overloaded("The server is shutting down.", retry_after_s=5)
