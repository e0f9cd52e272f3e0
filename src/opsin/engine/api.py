"""The contract between the gateway and any engine.

    reserve(request_id, keys) → which features are there already (leased to the request), which are missing
    submit(request)           → a stream of deltas that ends in exactly one Finished, or raises one OpsinError
    cancel, release, purge, stats, capabilities

Engines get bytes or pixels, never URLs. This module knows no engine, no torch, no HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal, Protocol

from opsin.core.conversation import Conversation, Fields
from opsin.core.erasure import PurgeOutcome
from opsin.core.stages import Stage
from opsin.media.types import ImageFormat, MediaBytes, RenderedPicture
from opsin.vision.size import Size

FinishReason = Literal["stop", "length", "content_filter", "tool_calls"]  # the last two: upstream engines only


class InputKind(StrEnum):
    """What an engine reads."""

    TOKENS = "tokens"  # token ids and rendered pixels: we own template, tokenizer and rendering
    MESSAGES = "messages"  # chat messages and picture bytes: the engine applies its own template


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen; names and meaning are vLLM's. ``temperature`` 0 is greedy, ``top_k`` 0 is off.

    ``max_tokens`` None means as many as ``max_model_len`` leaves.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    left_open: frozenset[str] = (
        frozenset()
    )  # fields that the client did not set: an engine may have defaults of its own


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids with the picture slots already expanded; one image token per encoder position."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """The conversation as the user structured it; its media refs correspond in order to the request's pictures."""

    conversation: Conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One picture of a request, in prompt order.

    ``key`` identifies its features within a scope; ``origin`` the bytes that it was made of, which is what ``purge``
    takes. ``upright`` is its size before rendering. For a TOKENS engine ``rendered`` is None when ``key`` was leased by
    ``reserve``. For a MESSAGES engine ``media`` is the file to send, leased or not, and ``key`` names this file within
    the scope; its counts are a plan, None where the engine alone knows.
    """

    key: str
    image_tokens: int | None
    num_tiles: int | None
    origin: str = ""
    upright: Size | None = None
    rendered: RenderedPicture | None = None
    media: MediaBytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One request to an engine."""

    id: str
    scope: str  # opaque tenant scope: features and prefixes never cross it
    prompt: TokenPrompt | ChatPrompt
    pictures: tuple[Picture, ...]
    sampling: SamplingParams
    submitted_at: float  # time.monotonic(); what passes until the engine starts is queue
    began_at: float | None = None  # when its pictures were first asked for; None: when it was submitted

    @property
    def since(self) -> float:
        """What was purged after this is not kept of it."""
        return self.submitted_at if self.began_at is None else self.began_at


@dataclass(frozen=True, slots=True)
class Reservation:
    """Outcome of ``reserve``; the leases last until the request ends or ``release`` is called."""

    leased: frozenset[str]
    missing: frozenset[str]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts from the ids that the engine ran. None: it cannot tell; a count is never guessed.

    ``prompt_tokens`` and ``completion_tokens`` are None only where an upstream sent no usage. ``placeholder_tokens``
    are the image tokens with such markers around them as the engine takes for the picture's: all of them or none.
    """

    prompt_tokens: int | None
    completion_tokens: int | None
    image_tokens: int | None
    cached_tokens: int | None = None
    further: Fields = ()  # what else an upstream counts
    placeholder_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Further:
    """What an upstream says beyond text, by the object of the event in which it stands: tool calls, reasoning, log
    probabilities, and whatever an engine invents."""

    event: Fields = ()
    choice: Fields = ()
    delta: Fields = ()


NOTHING = Further()


@dataclass(frozen=True, slots=True)
class Delta:
    """New text, never half a character; empty only where there is something ``further``. ``num_tokens`` went into both,
    0 where nothing was generated for them."""

    text: str
    num_tokens: int
    further: Further = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Of an answer by a remote engine. ``source`` is who told its stages, ``rest_s`` what it took beyond these.

    ``num_by_name`` pictures were there already: all others went with their bytes, also such as had been leased.
    """

    source: str
    rest_s: float
    num_by_name: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a stream. ``stages_s`` holds queue, vision_encode, prefill, decode as far as the engine knows them.

    ``reason`` is a FinishReason, or an upstream's own word.
    """

    reason: FinishReason | str
    usage: Usage
    stages_s: Mapping[Stage, float]
    encoded_pictures_s: Sequence[float] = field(default=())  # encoder time of each picture that was encoded
    encoded_tiles: int = 0  # of these pictures
    remote: Remote | None = None
    replica: str | None = None  # which one of several answered
    peak_memory_bytes: int | None = None  # while it ran, of the device or the engine's process; None: not alone there


StreamEvent = Delta | Finished


class ReplicaState(StrEnum):
    """Of one of several engines that serve the same model."""

    READY = "ready"
    EJECTED = "ejected"  # it failed too often, and is left alone for a while
    DOWN = "down"  # it does not answer, or has not been started
    DRAINING = "draining"  # what runs there ends, and nothing new begins


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStats:
    """A snapshot of one replica. ``requests`` and ``visual_tokens`` are outstanding; the last two only grow."""

    name: str
    state: ReplicaState
    requests: int
    visual_tokens: int
    ejections: int
    retries: int  # requests that it refused before any work, and that another replica got


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSum:
    """What an engine's own histogram of a stage gained while opsin watched, of all its requests, whoever asked."""

    source: str
    stage: Stage
    seconds: float
    requests: int


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot for gauges. None: the engine cannot tell."""

    running: int
    waiting: int
    kv_tokens: int | None = None
    kv_image_tokens: int | None = None
    cache_bytes: int | None = None  # vision features
    prefix_cache_bytes: int | None = None  # keys and values of finished requests
    cache_turned_down: bool | None = None  # of vision features only a sample is kept: hardly any came again
    kv_cache_bytes: int | None = None  # allocated for those of running ones
    process_memory_bytes: int | None = None
    device_memory_bytes: int | None = None
    replicas: tuple[ReplicaStats, ...] = ()
    stage_sums: tuple[StageSum, ...] = ()

    @staticmethod
    def total(several: Sequence[EngineStats]) -> EngineStats:
        """Sums; of what only some engines can tell, the sum of what they tell. Replicas are left out."""
        return EngineStats(
            running=sum(one.running for one in several),
            waiting=sum(one.waiting for one in several),
            kv_tokens=_sum(one.kv_tokens for one in several),
            kv_image_tokens=_sum(one.kv_image_tokens for one in several),
            cache_bytes=_sum(one.cache_bytes for one in several),
            prefix_cache_bytes=_sum(one.prefix_cache_bytes for one in several),
            cache_turned_down=_any(one.cache_turned_down for one in several),
            kv_cache_bytes=_sum(one.kv_cache_bytes for one in several),
            process_memory_bytes=_sum(one.process_memory_bytes for one in several),
            device_memory_bytes=_sum(one.device_memory_bytes for one in several),
            stage_sums=_stage_sums(sum_ for one in several for sum_ in one.stage_sums),
        )


def _sum(values: Iterable[int | None]) -> int | None:
    told = [value for value in values if value is not None]
    return sum(told) if told else None


def _stage_sums(several: Iterable[StageSum]) -> tuple[StageSum, ...]:
    by_stage = dict[tuple[str, Stage], StageSum]()
    for one in several:
        so_far = by_stage.get((one.source, one.stage))
        by_stage[one.source, one.stage] = one if so_far is None else _added(so_far, one)
    return tuple(by_stage.values())


def _added(one: StageSum, other: StageSum) -> StageSum:
    return replace(one, seconds=one.seconds + other.seconds, requests=one.requests + other.requests)


def _any(values: Iterable[bool | None]) -> bool | None:
    told = [value for value in values if value is not None]
    return any(told) if told else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an engine can do and tell."""

    input: InputKind
    max_model_len: int | None
    max_num_seqs: int | None
    stages: frozenset[Stage]  # the stages it reports
    reports_cache: bool  # reserve() tells hits and misses of vision features
    reports_kv: bool  # stats() tells what the KV cache holds
    relays: bool = False  # fields that opsin does not read are sent to it, and its own are passed on
    model_name: str | None = None  # an upstream's own name for the model, known after start()
    model_root: str | None = None  # what an upstream says that the model is, where its name is another
    model_revision: str | None = None  # as an upstream says it
    picture_formats: frozenset[ImageFormat] | None = None  # of a MESSAGES engine; None: nobody knows
    ignores_orientation: bool = False  # it shows the model a picture as it is stored, whatever its metadata say
    load_time_s: float | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True)
class PurgeReport:
    """Tier name → outcome."""

    tiers: Mapping[str, PurgeOutcome]


class Engine(Protocol):
    """Implemented alike by local, upstream and fake engines."""

    async def start(self) -> None:
        """Loads or connects; returns when requests can be served. Raises ConfigError or EngineError."""
        ...

    async def close(self) -> None:
        """Ends running requests and frees processes and sockets. Safe to call twice."""
        ...

    def capabilities(self) -> Capabilities:
        """Constant after start()."""
        ...

    def unready_reason(self) -> str | None:
        """None when requests can be served, else a sentence for ``/ready``."""
        ...

    async def reserve(self, request_id: str, keys: Sequence[str]) -> Reservation:
        """Leases the features that exist. An engine without a feature cache reports every key as missing."""
        ...

    async def release(self, request_id: str) -> None:
        """Gives leases back when no submit follows. Unknown ids are fine."""
        ...

    def submit(self, request: GenerationRequest) -> AsyncGenerator[StreamEvent, None]:
        """Runs a request. Closing the iterator early cancels it.

        Raises EngineError and ContextLengthExceeded; an upstream engine also InvalidRequest and Overloaded.
        """
        ...

    async def cancel(self, request_id: str) -> None:
        """Stops a request and frees what it holds. Unknown ids are fine."""
        ...

    async def purge(self, scope: str, origin: str | None) -> PurgeReport:
        """Erases what is kept of a picture, by what it was made of, or all of a scope.

        What another picture of the scope has too, as a tile, stays. Requests that began before keep nothing of it.
        """
        ...

    async def stats(self) -> EngineStats:
        """A snapshot, cheap enough for every scrape."""
        ...
