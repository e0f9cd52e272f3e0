"""Answers on the wire: completion, chunks, models, errors; as msgspec structs, encoded straight to bytes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from opsin.core.errors import OpsinError

JsonObject = dict[str, object]


class PromptTokensDetails(msgspec.Struct, omit_defaults=True):
    """OpenAI's names; a count that the engine cannot tell is absent."""

    image_tokens: int | None = None
    cached_tokens: int | None = None
    multimodal_tokens: dict[str, int] | None = None  # vLLM's: markers included where they belong to the placeholder


class Usage(msgspec.Struct):
    """Token counts of one answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class ImageReport(msgspec.Struct, omit_defaults=True):
    """One picture of the request as it was read: upright size in pixels; ``frames`` only of a file with several.

    What the model got of it, if opsin knows: the size before padding and cutting, tiles with the overview, visual
    tokens; ``scaled`` only where that is less than its ``detail`` asked for. ``sent_`` only where another file went to
    the engine than came: its encoding and size.
    """

    format: str
    width: int
    height: int
    frames: int | None = None
    frames_used: int | None = None
    used_width: int | None = None
    used_height: int | None = None
    tiles: int | None = None
    image_tokens: int | None = None
    scaled: bool = False
    sent_as: str | None = None
    sent_width: int | None = None
    sent_height: int | None = None


class WarningObject(msgspec.Struct):
    """Something to know about an answer that came nevertheless."""

    code: str
    message: str
    param: str | None


class Extension(msgspec.Struct, omit_defaults=True):
    """What opsin adds to an answer: ``timeline`` in milliseconds, ``images`` in order, see ``docs/api.md``.

    ``stage_sources`` names who told a stage that opsin did not measure.
    """

    timeline: dict[str, float]
    stage_sources: dict[str, str] = {}
    images: list[ImageReport] = []
    warnings: list[WarningObject] = []


class AssistantMessage(msgspec.Struct):
    """The whole answer."""

    content: str | None
    role: str = "assistant"
    refusal: None = None


class Choice(msgspec.Struct):
    """The one choice of a completion."""

    message: AssistantMessage
    finish_reason: str
    index: int = 0
    logprobs: None = None


class ChatCompletion(msgspec.Struct):
    """A complete answer."""

    id: str
    model: str
    choices: list[Choice]
    usage: Usage | None
    opsin: Extension
    created: int
    object: str = "chat.completion"


class ChunkDelta(msgspec.Struct, omit_defaults=True):
    """New text; the role comes with the first one."""

    role: str | None = None
    content: str | None = None


class ChunkChoice(msgspec.Struct):
    """The one choice of a chunk."""

    delta: ChunkDelta
    finish_reason: str | None = None
    index: int = 0
    logprobs: None = None


class ChatCompletionChunk(msgspec.Struct, omit_defaults=True):
    """One event of a stream; ``choices`` is empty only on the usage chunk."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: str = msgspec.field(default_factory=lambda: "chat.completion.chunk")
    usage: Usage | None = None
    opsin: Extension | None = None


class ModelObject(msgspec.Struct):
    """One served model; ``revision`` is the resolved commit, or a digest of a local folder."""

    id: str
    created: int
    revision: str | None
    root: str
    max_model_len: int | None
    object: str = "model"
    owned_by: str = "opsin"


class ModelList(msgspec.Struct):
    """``GET /v1/models``."""

    data: list[ModelObject]
    object: str = "list"


class ErrorObject(msgspec.Struct):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(msgspec.Struct):
    """The body of every error answer, and the data of an error event after the first byte."""

    error: ErrorObject


class TurnedCount(msgspec.Struct):
    """What a picture takes if it lies on its side."""

    image_tokens: int
    marker_tokens: int
    tiles: int
    used_width: int
    used_height: int


class ImageCount(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one picture takes, in the words of ImageReport; null where the engine alone knows.

    ``exact``: it will be charged so. Otherwise it is an estimate, or ``turned`` holds in case it lies on its side.
    """

    width: int
    height: int
    used_width: int | None
    used_height: int | None
    tiles: int | None
    image_tokens: int | None
    marker_tokens: int | None
    exact: bool
    scaled: bool
    cross_attention_tokens: int = 0
    turned: TurnedCount | None = None


class TokenCount(msgspec.Struct, kw_only=True, omit_defaults=True):
    """``POST /v1/tokens``. ``refusal`` is the error that the request would get for its size."""

    model: str
    text_tokens: int | None
    image_tokens: int | None
    marker_tokens: int | None
    prompt_tokens: int | None
    max_model_len: int | None
    fits: bool | None
    images: list[ImageCount]
    cross_attention_tokens: int = 0
    refusal: ErrorObject | None = None
    warnings: list[WarningObject] = []


def error_object(error: OpsinError) -> ErrorObject:
    """An error as clients see it."""
    return ErrorObject(error.message, error.type, error.param, error.code)


def error_body(error: OpsinError) -> bytes:
    """The JSON of an error."""
    return msgspec.json.encode(ErrorBody(error_object(error)))


def encode(answer: msgspec.Struct) -> bytes:
    """JSON of any answer of this module."""
    return msgspec.json.encode(answer)


@dataclass(frozen=True, slots=True)
class FurtherFields:
    """Fields of an engine's own, by the object of an answer that they join; ``text`` is a choice's message or delta."""

    answer: JsonObject = field(default_factory=dict[str, object])
    choice: JsonObject = field(default_factory=dict[str, object])
    text: JsonObject = field(default_factory=dict[str, object])
    usage: JsonObject = field(default_factory=dict[str, object])


def encode_with(answer: ChatCompletion | ChatCompletionChunk, further: FurtherFields) -> bytes:
    """JSON of an answer with an engine's own fields; a field of both is the engine's."""
    if further == FurtherFields():
        return encode(answer)
    wire: dict[str, Any] = msgspec.to_builtins(answer)
    wire |= further.answer
    for choice in wire["choices"]:
        choice |= further.choice
        choice["message" if "message" in choice else "delta"] |= further.text
    if further.usage and wire.get("usage"):
        wire["usage"] |= further.usage
    return msgspec.json.encode(wire)


def now() -> int:
    """Unix seconds, for ``created``."""
    return int(time.time())
