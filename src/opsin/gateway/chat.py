"""One chat request, from validated body to token deltas, each stage entered once, in order.

media.load → prepare (plan, budget, reserve, render, build) → engine.submit → deltas
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol

from opsin.cache.keys import Scopes
from opsin.core.conversation import MediaRef, Prompt, RawPrompt
from opsin.core.errors import Code, EngineError, EngineOutOfMemory, InvalidRequest, OpsinError
from opsin.core.stages import Stage, Stopwatch, Timeline
from opsin.core.warnings import AnswerWarning
from opsin.engine.api import (
    NOTHING,
    Delta,
    Engine,
    Finished,
    FinishReason,
    Further,
    GenerationRequest,
    SamplingParams,
    StreamEvent,
    TokenPrompt,
    Usage,
)
from opsin.gateway.admission import Turns, Unlimited
from opsin.gateway.plan_check import PlanCheck
from opsin.gateway.prepare import Prepared, Preparer, UsedPicture
from opsin.media.label import label_warnings
from opsin.media.loader import NONE_LIFTED
from opsin.media.types import LiftedMedia, MediaBytes
from opsin.models.card import GenerationDefaults
from opsin.protocol.request import ChatCompletionRequest, SamplingFields, to_conversation
from opsin.telemetry.metrics import Metrics
from opsin.tenants.lanes import Cost, Lanes


@dataclass(frozen=True, slots=True)
class RawRequest:
    """What is no chat: from callers in this process only."""

    prompt: RawPrompt
    sampling: SamplingFields


@dataclass(frozen=True, slots=True)
class Begun:
    """What is known before the engine begins, so that headers can say it; ``Done`` says it again."""

    images: tuple[UsedPicture, ...]
    warnings: tuple[AnswerWarning, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The end of an answer, with what it answers: its pictures, and the prompt, whose ids or text are None where the
    engine makes them. ``replica`` is which one of several engines answered."""

    reason: FinishReason | str
    usage: Usage
    timeline: Timeline
    images: tuple[UsedPicture, ...] = ()
    warnings: tuple[AnswerWarning, ...] = ()
    prompt_text: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    replica: str | None = None


AnswerEvent = Begun | Delta | Done

UNLIMITED = Unlimited()

_WITH_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Sampling fields for which a checkpoint may have values of its own."""


class Loader(Protocol):
    """Loads the pictures of one request."""

    async def load(self, scope: str, refs: Sequence[MediaRef], lifted: LiftedMedia) -> tuple[MediaBytes, ...]:
        """In order. Raises MediaError, and NotFound for a file that this tenant did not upload."""
        ...


@dataclass(frozen=True, slots=True)
class _Gate:
    """Between what a request costs being known, and its costing anything."""

    turns: Turns
    lanes: Lanes
    watch: Stopwatch

    async def enter(self, cost: Cost) -> None:
        await self.turns.turn(self.lanes, cost, self.watch)


class ChatService:
    """Answers chat requests with one engine. Knows no HTTP."""

    def __init__(
        self,
        *,
        engine: Engine,
        loader: Loader,
        preparer: Preparer,
        scopes: Scopes,
        defaults: GenerationDefaults,
        metrics: Metrics,
        plan_check: PlanCheck,
        lanes: Lanes,
    ) -> None:
        self._engine = engine
        self._loader = loader
        self._preparer = preparer
        self._scopes = scopes
        self._defaults = defaults
        self._metrics = metrics
        self._plan_check = plan_check
        self._lanes = lanes
        self.in_progress = 0

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn at the engine."""
        return self._lanes.waiting

    async def answer(
        self,
        request: ChatCompletionRequest | RawRequest,
        *,
        request_id: str,
        tenant: str,
        lifted: LiftedMedia = NONE_LIFTED,
        turns: Turns = UNLIMITED,
    ) -> AsyncGenerator[AnswerEvent, None]:
        """Yields Begun, then deltas, then one Done.

        Closing the iterator early cancels the request everywhere. ``lifted`` are pictures that came with the body.
        ``turns`` is asked before anything costs; what it takes is its owner's to give back.

        Raises:
            OpsinError: before the first event or in place of any later one; exactly once.
        """
        watch = Stopwatch()
        self._check_ready()
        num_images = 0
        self.in_progress += 1
        try:
            scope = self._scopes.of(tenant)
            prompt, sampling = _prompt_and_sampling(request)
            refs = tuple(prompt.media())
            await turns.images(len(refs))
            with watch.stage(Stage.MEDIA_LOAD):
                media = await self._loader.load(scope, refs, lifted) if refs else ()
            num_images = len(media)
            self._metrics.active_images.inc(num_images)
            with watch.stage(Stage.PREPROCESS):
                gate = _Gate(turns, self._lanes, watch)
                prepared = await self._preparer.prepare(request_id, scope, prompt, media, sampling.output_tokens, gate)
            if labels := tuple(label_warnings(media)):
                prepared = replace(prepared, warnings=(*labels, *prepared.warnings))
            yield Begun(prepared.used, prepared.warnings)
            generation = GenerationRequest(
                id=request_id,
                scope=self._scopes.salted(scope),
                prompt=prepared.prompt,
                pictures=prepared.pictures,
                sampling=self._sampling(sampling, prepared.max_tokens),
                submitted_at=time.monotonic(),
                began_at=watch.started_at,
            )
            async with aclosing(self._engine.submit(generation)) as events:
                async for event in self._watched(events, watch, prepared, request_id):
                    yield event
        finally:
            self._metrics.active_images.dec(num_images)
            self.in_progress -= 1
            await self._engine.release(request_id)

    def _check_ready(self) -> None:
        reason = self._engine.unready_reason()
        if reason is not None:
            raise EngineError(reason, retry_after_s=2)

    def _sampling(self, request: SamplingFields, max_tokens: int | None) -> SamplingParams:
        check_min_tokens(request, max_tokens)
        defaults = self._defaults
        top_k = request.top_k if request.top_k is not None else defaults.top_k
        return SamplingParams(
            temperature=request.temperature if request.temperature is not None else defaults.temperature,
            top_p=request.top_p if request.top_p is not None else defaults.top_p,
            top_k=max(0, top_k),
            min_p=request.min_p if request.min_p is not None else defaults.min_p,
            repetition_penalty=(
                request.repetition_penalty if request.repetition_penalty is not None else defaults.repetition_penalty
            ),
            presence_penalty=request.presence_penalty,
            frequency_penalty=request.frequency_penalty,
            seed=request.seed,
            stop=request.stop_strings,
            max_tokens=max_tokens,
            min_tokens=request.min_tokens,
            ignore_eos=request.ignore_eos,
            left_open=frozenset(name for name in _WITH_DEFAULTS if getattr(request, name) is None),
        )

    async def _watched(
        self,
        events: AsyncIterator[StreamEvent],
        watch: Stopwatch,
        prepared: Prepared,
        request_id: str,
    ) -> AsyncIterator[AnswerEvent]:
        """Passes events on, measured."""
        previous: float | None = None
        async for event in events:
            if isinstance(event, Finished):
                yield self._finish(event, watch, prepared, request_id)
                return
            now = time.monotonic()
            if event.num_tokens:
                if previous is None:
                    self._metrics.ttft.observe(now - watch.started_at)
                else:
                    self._metrics.itl.observe((now - previous) / event.num_tokens)
                previous = now
            yield event
        raise EngineError("the engine ended the stream without finishing it", code=Code.ENGINE_TRUNCATED)

    def _finish(self, finished: Finished, watch: Stopwatch, prepared: Prepared, request_id: str) -> Done:
        timeline = _timeline(finished, watch)
        usage, planned = finished.usage, prepared.planned
        if planned is not None:
            usage = self._plan_check.compare(request_id, planned, usage)
        if (lookups := prepared.lookups) is not None:
            hits = finished.remote.num_by_name if finished.remote else lookups.hits
            self._metrics.looked_up(hits=hits, misses=lookups.hits + lookups.misses - hits)
        self._metrics.finished(timeline)
        self._metrics.image_tokens.inc(usage.image_tokens or 0)
        self._metrics.encoded(finished.encoded_pictures_s, finished.encoded_tiles)
        ids = prepared.prompt.ids if isinstance(prepared.prompt, TokenPrompt) else None
        return Done(
            reason=finished.reason,
            usage=usage,
            timeline=timeline,
            images=prepared.used,
            warnings=prepared.warnings,
            prompt_text=prepared.text,
            prompt_ids=ids,
            replica=finished.replica,
        )


def _timeline(finished: Finished, watch: Stopwatch) -> Timeline:
    if finished.remote is not None:
        watch.told(finished.remote.source, finished.stages_s, finished.remote.rest_s)
    else:
        for stage, seconds in finished.stages_s.items():
            watch.add(stage, seconds)
    return watch.timeline(finished.peak_memory_bytes)


def _prompt_and_sampling(request: ChatCompletionRequest | RawRequest) -> tuple[Prompt, SamplingFields]:
    if isinstance(request, RawRequest):
        return request.prompt, request.sampling
    return to_conversation(request), request


def check_min_tokens(request: SamplingFields, max_tokens: int | None) -> None:
    """Raises InvalidRequest when a request wants more output than is left."""
    if max_tokens is not None and request.min_tokens > max_tokens:
        raise InvalidRequest(
            f"'min_tokens' is {request.min_tokens}, but only {max_tokens} output tokens are left",
            param="min_tokens",
        )


@dataclass(frozen=True, slots=True)
class Collected:
    """A whole answer. ``further`` are what an upstream said beyond text, event by event."""

    text: str
    further: tuple[Further, ...]
    done: Done


async def collect(answer: AsyncGenerator[AnswerEvent, None]) -> Collected:
    """All of an answer. Raises OpsinError as the answer does."""
    texts: list[str] = []
    further: list[Further] = []
    async with aclosing(answer) as events:
        async for event in events:
            match event:
                case Delta():
                    texts.append(event.text)
                    further += () if event.further is NOTHING else (event.further,)
                case Done():
                    return Collected("".join(texts), tuple(further), event)
                case Begun():
                    pass  # the end says it again
    raise OpsinError("the answer ended without a result")


def count_outcome(metrics: Metrics, error: OpsinError | None) -> str:
    """Counts one answered request; returns its code, ``ok`` without an error."""
    if isinstance(error, EngineOutOfMemory):
        metrics.oom.inc()
    status, code = (200, "ok") if error is None else (error.status, error.code)
    metrics.requests.labels(str(status), code).inc()
    return code
