"""The local engine as the gateway sees it: the Engine contract over a worker process, with restarts.

Demultiplexes the worker's messages to per-request queues, turns tokens into text and finds stop strings. The request in
flight at a crash fails and is never replayed. Knows no torch and no model.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Callable, Sequence

import psutil

from opsin.cache.tombstones import Tombstones
from opsin.core.errors import Code, EngineError, OpsinError
from opsin.core.stages import Stage
from opsin.engine.api import (
    Capabilities,
    EngineStats,
    Finished,
    FinishReason,
    GenerationRequest,
    InputKind,
    Picture,
    PurgeOutcome,
    PurgeReport,
    Reservation,
    StreamEvent,
    TokenPrompt,
    Usage,
)
from opsin.engine.crashes import CrashHistory, restarted
from opsin.engine.local.config import LocalEngineConfig
from opsin.engine.local.detokenize import Detokenizer, TextStream
from opsin.engine.local.messages import (
    Cancel,
    CoreStats,
    Ended,
    Failed,
    FromWorker,
    PictureData,
    Purge,
    Purged,
    Ready,
    Release,
    Reserve,
    Reserved,
    StepOutput,
    Submit,
    Tiles,
    Token,
    error_from_wire,
)
from opsin.engine.local.process import WorkerProcess

logger = logging.getLogger(__name__)

FEATURE_TIER = "features"
_Event = Token | Ended | OpsinError


class LocalEngine:
    """See ``engine.api.Engine``. ``make_detokenizer`` gives a fresh detokenizer for every request."""

    def __init__(self, config: LocalEngineConfig, make_detokenizer: Callable[[], Detokenizer]) -> None:
        self._config = config
        self._make_detokenizer = make_detokenizer
        self._worker: WorkerProcess | None = None
        self._ready: Ready | None = None
        self._unready_reason: str | None = "the engine has not been started"
        self._supervisor: asyncio.Task[None] | None = None
        self._streams: dict[str, asyncio.Queue[_Event]] = {}
        self._replies: dict[int, asyncio.Future[Reserved | Purged]] = {}
        self._serials = itertools.count()
        self._tombstones = Tombstones(config.tombstone_ttl_s)
        self._core_stats = CoreStats()
        self._crashes = CrashHistory()
        self._closed = False

    async def start(self) -> None:
        """See Engine."""
        worker = await self._launch()
        self._supervisor = asyncio.create_task(self._supervise(worker), name="local-engine-supervisor")

    async def close(self) -> None:
        """See Engine."""
        self._closed = True
        self._unready_reason = "the engine is closed"
        self._fail_all(EngineError("the server is shutting down", code=Code.ENGINE_CLOSED))
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.cancel()
            await asyncio.wait((supervisor,))
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop()

    def capabilities(self) -> Capabilities:
        """See Engine."""
        ready = self._ready
        return Capabilities(
            input=InputKind.TOKENS,
            max_model_len=self._config.max_model_len,
            max_num_seqs=ready.max_num_seqs if ready else self._config.max_num_seqs,
            stages=frozenset({Stage.QUEUE, Stage.VISION_ENCODE, Stage.PREFILL, Stage.DECODE}),
            reports_cache=True,
            reports_kv=True,
            load_time_s=ready.load_time_s if ready else None,
            device=ready.device if ready else None,
        )

    def unready_reason(self) -> str | None:
        """See Engine."""
        return self._unready_reason

    async def reserve(self, request_id: str, keys: Sequence[str]) -> Reservation:
        """See Engine. Answered by the worker's reader thread: it never waits for a step."""
        if not keys:
            return Reservation(frozenset(), frozenset())
        serial = next(self._serials)
        reply = await self._ask(serial, Reserve(serial, request_id, tuple(keys)))
        assert isinstance(reply, Reserved)
        leased = frozenset(reply.leased)
        return Reservation(leased=leased, missing=frozenset(keys) - leased)

    async def release(self, request_id: str) -> None:
        """See Engine."""
        if self._worker is not None:
            self._worker.send(Release(request_id))

    async def submit(self, request: GenerationRequest) -> AsyncGenerator[StreamEvent, None]:
        """See Engine. The request is sent when the first event is asked for."""
        text = TextStream(self._make_detokenizer(), request.sampling.stop, request.sampling.min_tokens)
        events = self._open(request)
        try:
            while isinstance(event := await events.get(), Token):
                delta = text.push(event.token_id)
                if delta is not None:
                    yield delta
                if text.stopped:
                    event = await self._stop(request.id, events)
                    break
            if isinstance(event, OpsinError):
                raise event
            if not text.stopped and (last := text.finish()) is not None:
                yield last
            yield _finished(event, text)
        finally:
            self._forget(request.id)

    async def cancel(self, request_id: str) -> None:
        """See Engine. The stream, if someone still reads it, raises EngineError."""
        events = self._streams.get(request_id)
        self._forget(request_id)
        if events is not None:
            events.put_nowait(EngineError("the request was cancelled", code=Code.REQUEST_CANCELLED))

    async def purge(self, scope: str, origin: str | None) -> PurgeReport:
        """See Engine. Waits for the current step; features in use are gone when their requests end."""
        self._tombstones.bury(scope, origin)
        serial = next(self._serials)
        try:
            reply = await self._ask(serial, Purge(serial, scope, origin))
        except EngineError:
            # Features live only in the worker's memory: no worker, no features.
            return PurgeReport({FEATURE_TIER: PurgeOutcome.NONE})
        assert isinstance(reply, Purged)
        return PurgeReport({FEATURE_TIER: PurgeOutcome.ERASED if reply.erased else PurgeOutcome.NONE})

    async def stats(self) -> EngineStats:
        """See Engine. The worker's figures are those of its last step."""
        core = self._core_stats
        # Requests start in order as places become free, so this is exact even in the middle of a long step.
        running = min(len(self._streams), self._ready.max_num_seqs if self._ready else 0)
        return EngineStats(
            running=running,
            waiting=len(self._streams) - running,
            kv_tokens=core.kv_tokens,
            kv_image_tokens=core.kv_image_tokens,
            cache_bytes=core.cache_bytes,
            prefix_cache_bytes=core.prefix_cache_bytes,
            cache_turned_down=core.cache_turned_down,
            kv_cache_bytes=core.kv_cache_bytes,
            process_memory_bytes=_memory_bytes(self._worker),
            device_memory_bytes=core.device_memory_bytes,
        )

    async def _launch(self) -> WorkerProcess:
        """Spawns and loads; the worker is ours to end if that fails or is cancelled."""
        self._unready_reason = "the model is loading"
        worker = await WorkerProcess.spawn()
        try:
            self._ready = await worker.load(self._config, self._note_progress)
            if self._closed:
                raise EngineError("the server is shutting down", code=Code.ENGINE_CLOSED)
        except BaseException as error:
            await worker.kill()
            self._unready_reason = "the model could not be loaded"
            if isinstance(error, OpsinError):
                self._unready_reason += f": {error.message}"
            raise
        self._worker = worker
        self._unready_reason = None
        return worker

    def _note_progress(self, step: str) -> None:
        logger.info("loading: %s", step)
        self._unready_reason = f"the model is loading: {step}"

    async def _supervise(self, worker: WorkerProcess) -> None:
        """Reads the worker until it dies, then starts the next one, until the crash history says stop."""
        live: WorkerProcess | None = worker
        while live is not None:
            await self._pump(live)
            self._bury()
            await live.kill()
            live = await restarted(self._crashes, self._launch, self._give_up)

    async def _pump(self, worker: WorkerProcess) -> None:
        """The supervisor's border: a worker that talks nonsense is a dead one."""
        try:
            while (message := await worker.receive()) is not None:
                self._dispatch(message)
        except Exception:
            logger.exception("a message of the engine process could not be read")

    def _bury(self) -> None:
        logger.error("the engine process died; %d request(s) fail", len(self._streams))
        self._worker = None
        self._core_stats = CoreStats()
        self._unready_reason = "the engine process died and is being restarted"
        self._fail_all(EngineError("the engine process died while it ran this request", code=Code.ENGINE_DIED))

    def _give_up(self, how_often: str) -> None:
        self._unready_reason = f"the engine process died {how_often}"
        logger.error(self._unready_reason)

    def _dispatch(self, message: FromWorker) -> None:
        match message:
            case StepOutput():
                self._core_stats = message.stats
                self._deliver(message)
            case Reserved() | Purged():
                if isinstance(message, Purged):
                    self._core_stats = message.stats
                reply = self._replies.get(message.serial)
                if reply is not None and not reply.done():
                    reply.set_result(message)
            case _:
                raise AssertionError(f"{type(message).__name__} after Ready")

    def _deliver(self, output: StepOutput) -> None:
        for event in itertools.chain(output.tokens, output.ended):
            self._put(event.request_id, event)
        for failed in output.failed:
            self._put(failed.request_id, _error(failed))

    def _put(self, request_id: str, event: _Event) -> None:
        """An event of a request that nobody reads any more is dropped."""
        events = self._streams.get(request_id)
        if events is not None:
            events.put_nowait(event)

    def _open(self, request: GenerationRequest) -> asyncio.Queue[_Event]:
        worker = self._running_worker()
        if request.id in self._streams:
            raise EngineError("a request with this id is running", code=Code.ENGINE_DUPLICATE_ID)
        message = _to_submit(request, self._tombstones)
        events: asyncio.Queue[_Event] = asyncio.Queue()
        worker.send(message)
        self._streams[request.id] = events
        return events

    async def _stop(self, request_id: str, events: asyncio.Queue[_Event]) -> Ended | OpsinError:
        """Cancels in the worker and reads past tokens that were on their way."""
        if self._worker is not None:
            self._worker.send(Cancel(request_id))
        while isinstance(event := await events.get(), Token):
            pass
        return event

    def _forget(self, request_id: str) -> None:
        """Ends a stream; a no-op in the worker when the request ended there already."""
        if self._streams.pop(request_id, None) is not None and self._worker is not None:
            self._worker.send(Cancel(request_id))

    async def _ask(self, serial: int, message: Reserve | Purge) -> Reserved | Purged:
        worker = self._running_worker()
        reply: asyncio.Future[Reserved | Purged] = asyncio.get_running_loop().create_future()
        self._replies[serial] = reply
        try:
            worker.send(message)
            return await reply
        finally:
            del self._replies[serial]

    def _running_worker(self) -> WorkerProcess:
        if self._worker is None or self._closed:
            raise EngineError(self._unready_reason or "the engine is not ready", retry_after_s=1)
        return self._worker

    def _fail_all(self, error: EngineError) -> None:
        """Each request gets an error of its own: one object raised in several tasks would mix their tracebacks."""
        streams, self._streams = self._streams, {}
        for events in streams.values():
            events.put_nowait(EngineError(error.message, code=error.code))
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(EngineError(error.message, code=error.code))


def _to_submit(request: GenerationRequest, tombstones: Tombstones) -> Submit:
    """Between the look at the tombstones and the message nothing waits, so that a later purge comes behind it."""
    assert isinstance(request.prompt, TokenPrompt), "the local engine reads token ids"
    return Submit(
        request_id=request.id,
        scope=request.scope,
        prompt_ids=request.prompt.ids,
        pictures=tuple(
            _to_picture(picture, keep=not tombstones.covers(request.scope, picture.origin, request.since))
            for picture in request.pictures
        ),
        sampling=request.sampling,
        submitted_at=request.submitted_at,
    )


def _to_picture(picture: Picture, *, keep: bool) -> PictureData:
    assert picture.image_tokens is not None, "a TOKENS engine gets counted pictures"
    return PictureData(
        key=picture.key,
        image_tokens=picture.image_tokens,
        tiles=_to_tiles(picture),
        origin=picture.origin,
        keep=keep,
    )


def _to_tiles(picture: Picture) -> Tiles | None:
    rendered, upright = picture.rendered, picture.upright
    if rendered is None:
        return None
    original = (upright.width, upright.height) if upright else (0, 0)
    return Tiles(rendered.pixels, rendered.num_tiles, rendered.tile.width, rendered.tile.height, original)


def _finished(ended: Ended, text: TextStream) -> Finished:
    """A stop string counts the tokens up to the one that completed it, not those that the engine was ahead."""
    reason: FinishReason = "length" if ended.reason == "length" and not text.stopped else "stop"
    return Finished(
        reason=reason,
        usage=Usage(
            prompt_tokens=ended.prompt_tokens,
            completion_tokens=text.num_tokens if text.stopped else ended.completion_tokens,
            image_tokens=ended.image_tokens,
            cached_tokens=ended.cached_tokens,
        ),
        stages_s=ended.stages_s,
        encoded_pictures_s=ended.encoded_pictures_s,
        encoded_tiles=ended.encoded_tiles,
        peak_memory_bytes=ended.peak_memory_bytes,
    )


def _error(failed: Failed) -> OpsinError:
    return error_from_wire(failed.error)


def _memory_bytes(worker: WorkerProcess | None) -> int | None:
    """Resident memory of the worker."""
    if worker is None:
        return None
    try:
        return psutil.Process(worker.pid).memory_info().rss
    except psutil.Error:
        return None
