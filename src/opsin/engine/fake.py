"""An engine without a model: the whole contract, in-process and deterministic.

For tests and for ``opsin serve --engine fake``: settable latencies, a fixed answer, failures on demand,
``max_num_seqs`` requests at a time. A token is one word of the answer. Knows no torch and looks at no pixel.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from opsin.cache.tombstones import TOMBSTONE_TTL_S, Tombstones
from opsin.core.conversation import TextPart
from opsin.core.errors import Code, ConfigError, ContextLengthExceeded, EngineError, EngineOutOfMemory
from opsin.core.stages import Stage
from opsin.engine.api import (
    Capabilities,
    ChatPrompt,
    EngineStats,
    Finished,
    FinishReason,
    GenerationRequest,
    InputKind,
    PurgeOutcome,
    PurgeReport,
    Reservation,
    StreamEvent,
    Usage,
)
from opsin.engine.local.detokenize import TextStream

_WORD = re.compile(r"\s*\S+\s*?")


class FakeFailure(StrEnum):
    """When the fake engine fails, and how."""

    NONE = "none"
    START = "start"  # start() raises ConfigError
    BEFORE_FIRST_TOKEN = "before_first_token"  # noqa: S105 (not a password)
    MID_STREAM = "mid_stream"  # after the first token
    OUT_OF_MEMORY = "out_of_memory"


class FakeConfig(BaseModel):
    """Times in seconds; ``encode_s`` is per picture that was not reserved."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str = Field(default="This answer comes from the fake engine.", description="every answer")
    input: InputKind = Field(default=InputKind.TOKENS, description="what the engine reads; a server chooses messages")
    ttft_s: float = Field(default=0.0, ge=0, description="time to the first token")
    itl_s: float = Field(default=0.0, ge=0, description="time between tokens")
    encode_s: float = Field(default=0.0, ge=0, description="time to encode a picture")
    max_model_len: int = Field(default=8192, gt=1, description="tokens of prompt and output")
    max_num_seqs: int = Field(default=8, gt=0, description="requests at once")
    extra_image_tokens: int = Field(
        default=0, ge=0, description="counted beside those that were planned, as by an engine that counts otherwise"
    )
    failure: FakeFailure = Field(default=FakeFailure.NONE, description="when to fail")


class _Words:
    """A detokenizer whose token ids are positions in the answer's words."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words

    def push(self, token_id: int) -> str:
        """The word itself."""
        return self._words[token_id]

    def flush(self) -> str:
        """Words are never incomplete."""
        return ""


@dataclass(slots=True)
class _Keys:
    """The feature cache of an engine without features: key → scope and origin, and request id → leased keys."""

    made_of: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    leases: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    tombstones: Tombstones = field(default_factory=lambda: Tombstones(TOMBSTONE_TTL_S))

    def reserve(self, request_id: str, keys: Sequence[str]) -> Reservation:
        """Leases known keys."""
        leased = frozenset(keys) & self.made_of.keys()
        self.leases[request_id] = self.leases.get(request_id, frozenset()) | leased
        return Reservation(leased=leased, missing=frozenset(keys) - leased)

    def keep(self, request: GenerationRequest) -> None:
        """Nothing that was purged after the request began."""
        for picture in request.pictures:
            if not self.tombstones.covers(request.scope, picture.origin, request.since):
                self.made_of[picture.key] = (request.scope, picture.origin)

    def purge(self, scope: str, origin: str | None) -> bool:
        """Whether there was anything."""
        self.tombstones.bury(scope, origin)
        doomed = [key for key, (owner, one) in self.made_of.items() if owner == scope and origin in (None, one)]
        for key in doomed:
            del self.made_of[key]
        return bool(doomed)


class FakeEngine:
    """See ``engine.api.Engine``."""

    def __init__(self, config: FakeConfig | None = None) -> None:
        self._config = config or FakeConfig()
        self._words = _WORD.findall(self._config.text)
        self._keys = _Keys()
        self._places = asyncio.Semaphore(self._config.max_num_seqs)
        self._cancelled: dict[str, asyncio.Event] = {}
        self._running: dict[str, GenerationRequest] = {}
        self._unready_reason: str | None = "the engine has not been started"

    async def start(self) -> None:
        """See Engine."""
        if self._config.failure is FakeFailure.START:
            self._unready_reason = "the fake engine was told not to start"
            raise ConfigError(self._unready_reason)
        self._unready_reason = None

    async def close(self) -> None:
        """See Engine."""
        self._unready_reason = "the engine is closed"
        for cancelled in self._cancelled.values():
            cancelled.set()

    def capabilities(self) -> Capabilities:
        """See Engine."""
        return Capabilities(
            input=self._config.input,
            max_model_len=self._config.max_model_len,
            max_num_seqs=self._config.max_num_seqs,
            stages=frozenset({Stage.QUEUE, Stage.VISION_ENCODE, Stage.PREFILL, Stage.DECODE}),
            reports_cache=True,
            reports_kv=True,
            load_time_s=0.0,
            device="fake",
        )

    def unready_reason(self) -> str | None:
        """See Engine."""
        return self._unready_reason

    async def reserve(self, request_id: str, keys: Sequence[str]) -> Reservation:
        """See Engine."""
        return self._keys.reserve(request_id, keys)

    async def release(self, request_id: str) -> None:
        """See Engine."""
        self._keys.leases.pop(request_id, None)

    async def submit(self, request: GenerationRequest) -> AsyncGenerator[StreamEvent, None]:
        """See Engine. The request is counted when the first event is asked for."""
        if self._unready_reason is not None:
            raise EngineError(self._unready_reason, retry_after_s=1)
        prompt_tokens = self._prompt_tokens(request)
        cancelled = self._cancelled[request.id] = asyncio.Event()
        text = TextStream(_Words(self._words), request.sampling.stop, request.sampling.min_tokens)
        stages_s: dict[Stage, float] = {}
        try:
            async with self._places:
                self._running[request.id] = request
                stages_s[Stage.QUEUE] = max(0.0, time.monotonic() - request.submitted_at)
                encoded = await self._first_token(request, cancelled, stages_s)
                limit = min(self._limit(request, prompt_tokens), len(self._words))
                started = time.monotonic()
                for token_id in range(limit):
                    await self._sleep(self._config.itl_s if token_id else 0.0, cancelled)
                    self._fail_mid_stream(token_id)
                    if (delta := text.push(token_id)) is not None:
                        yield delta
                    if text.stopped:
                        break
                if not text.stopped and (last := text.finish()) is not None:
                    yield last
                stages_s[Stage.DECODE] = time.monotonic() - started
                reason: FinishReason = "stop" if text.stopped or limit == len(self._words) else "length"
                usage = self._usage(request, prompt_tokens, text.num_tokens)
                yield Finished(reason, usage, stages_s, encoded, encoded_tiles=len(encoded))
        finally:
            self._running.pop(request.id, None)
            self._cancelled.pop(request.id, None)
            await self.release(request.id)

    async def cancel(self, request_id: str) -> None:
        """See Engine. The stream, if someone still reads it, raises EngineError."""
        if request_id in self._cancelled:
            self._cancelled[request_id].set()

    async def purge(self, scope: str, origin: str | None) -> PurgeReport:
        """See Engine."""
        erased = self._keys.purge(scope, origin)
        return PurgeReport({"features": PurgeOutcome.ERASED if erased else PurgeOutcome.NONE})

    async def stats(self) -> EngineStats:
        """See Engine."""
        running = self._running.values()
        return EngineStats(
            running=len(running),
            waiting=len(self._cancelled) - len(running),
            kv_tokens=sum(_prompt_length(request) for request in running),
            kv_image_tokens=sum(_image_tokens(request) for request in running),
            cache_bytes=0,
            cache_turned_down=False,
        )

    async def _first_token(
        self, request: GenerationRequest, cancelled: asyncio.Event, stages_s: dict[Stage, float]
    ) -> tuple[float, ...]:
        """Encodes what is missing and waits for the first token; returns seconds per encoded picture."""
        missing = {picture.key for picture in request.pictures} - self._keys.made_of.keys()
        missing -= self._keys.leases.get(request.id, frozenset())
        await self._timed(Stage.VISION_ENCODE, self._config.encode_s * len(missing), cancelled, stages_s)
        self._keys.keep(request)
        await self._timed(Stage.PREFILL, self._config.ttft_s, cancelled, stages_s)
        self._fail_early()
        return (self._config.encode_s,) * len(missing)

    async def _timed(
        self, stage: Stage, seconds: float, cancelled: asyncio.Event, stages_s: dict[Stage, float]
    ) -> None:
        started = time.monotonic()
        await self._sleep(seconds, cancelled)
        stages_s[stage] = time.monotonic() - started

    async def _sleep(self, seconds: float, cancelled: asyncio.Event) -> None:
        """Gives way even for 0 s, as a real engine would. Raises EngineError when cancelled meanwhile."""
        if seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await cancelled.wait()
        else:
            await asyncio.sleep(0)
        if cancelled.is_set():
            raise EngineError("the request was cancelled", code=Code.REQUEST_CANCELLED)

    def _prompt_tokens(self, request: GenerationRequest) -> int:
        prompt_tokens = _prompt_length(request)
        if prompt_tokens >= self._config.max_model_len:
            raise ContextLengthExceeded(
                f"the prompt has {prompt_tokens} tokens and leaves no room for output: "
                f"max_model_len is {self._config.max_model_len}"
            )
        return prompt_tokens

    def _usage(self, request: GenerationRequest, prompt_tokens: int, completion_tokens: int) -> Usage:
        extra = self._config.extra_image_tokens if request.pictures else 0
        return Usage(prompt_tokens + extra, completion_tokens, _image_tokens(request) + extra, cached_tokens=0)

    def _limit(self, request: GenerationRequest, prompt_tokens: int) -> int:
        room = self._config.max_model_len - prompt_tokens
        return min(room, request.sampling.max_tokens or room)

    def _fail_early(self) -> None:
        if self._config.failure is FakeFailure.BEFORE_FIRST_TOKEN:
            raise EngineError("the engine process died while it ran this request", code=Code.ENGINE_DIED)
        if self._config.failure is FakeFailure.OUT_OF_MEMORY:
            raise EngineOutOfMemory("the engine ran out of memory", retry_after_s=1)

    def _fail_mid_stream(self, token_id: int) -> None:
        if token_id == 1 and self._config.failure is FakeFailure.MID_STREAM:
            raise EngineError("the engine process died while it ran this request", code=Code.ENGINE_DIED)


def _prompt_length(request: GenerationRequest) -> int:
    """Token ids, or words plus image tokens where the engine would apply its own template."""
    if not isinstance(request.prompt, ChatPrompt):
        return len(request.prompt.ids)
    parts = (part for message in request.prompt.conversation.messages for part in message.parts)
    words = sum(len(part.text.split()) for part in parts if isinstance(part, TextPart))
    return words + _image_tokens(request)


def _image_tokens(request: GenerationRequest) -> int:
    return sum(picture.image_tokens or 0 for picture in request.pictures)
