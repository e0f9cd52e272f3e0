"""What an OpenAI-compatible upstream sends, as far as opsin reads it. Unknown fields are skipped.

Everything optional is optional here: each engine leaves out something else.
"""

from __future__ import annotations

import msgspec


class ModelEntry(msgspec.Struct, frozen=True):
    """One model of ``/v1/models``; ``max_model_len`` and ``root``, its hub id or folder, are vLLM's and SGLang's.

    ``owned_by`` names the engine rather than an owner; ``revision`` is another opsin's.
    """

    id: str
    max_model_len: int | None = None
    root: str | None = None
    owned_by: str | None = None
    revision: str | None = None


class ModelList(msgspec.Struct, frozen=True):
    """The answer of ``/v1/models``."""

    data: list[ModelEntry]


class WireError(msgspec.Struct, frozen=True):
    """OpenAI's error object. ``code`` is a word at OpenAI and an HTTP status at vLLM, SGLang and llama-server."""

    message: str | None = None
    type: str | None = None
    code: int | str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of a failed answer: wrapped (OpenAI), bare (older vLLM and SGLang), or a plain text under ``error``."""

    error: WireError | str | None = None
    message: str | None = None
    type: str | None = None
    code: int | str | None = None

    def unwrap(self) -> WireError:
        """The error object, whichever shape it came in."""
        match self.error:
            case WireError():
                return self.error
            case str():
                return WireError(message=self.error)
            case None:
                return WireError(message=self.message, type=self.type, code=self.code)


class Modalities(msgspec.Struct, frozen=True):
    """vLLM's ``multimodal_tokens``: how long the placeholders are, with such markers as belong to them."""

    image: int | None = None


class PromptDetails(msgspec.Struct, frozen=True):
    """Parts of ``prompt_tokens``, never in addition to it."""

    cached_tokens: int | None = None
    image_tokens: int | None = None  # SGLang
    multimodal_tokens: Modalities | None = None  # vLLM


class WireUsage(msgspec.Struct, frozen=True):
    """Token counts."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class ChunkDelta(msgspec.Struct, frozen=True):
    """New text of one choice."""

    content: str | None = None


class ChunkChoice(msgspec.Struct, frozen=True):
    """One choice of a chunk; opsin asks for one only."""

    index: int = 0
    delta: ChunkDelta | None = None
    finish_reason: str | None = None


class WireExtension(msgspec.Struct, frozen=True):
    """What an opsin adds: milliseconds by stage, and the sums."""

    timeline: dict[str, float]


class Chunk(msgspec.Struct, frozen=True):
    """One event of a chat stream: text, the end, usage (then ``choices`` is empty), or an error after HTTP 200.

    Usage is read apart, as a WireUsage: an answer is whole without it.
    """

    choices: list[ChunkChoice] | None = None
    error: WireError | str | None = None
    opsin: msgspec.Raw = msgspec.Raw()  # where the upstream is an opsin; whatever another means by it does not matter


class _PlainDelta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: str | None = None
    content: str | None = None


class _PlainChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    index: int = 0
    delta: _PlainDelta = _PlainDelta()
    finish_reason: str | None = None
    logprobs: None = None
    stop_reason: None = None  # vLLM, as the two below
    token_ids: None = None


class PlainChunk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A chunk that says nothing but text and why it ends, as nearly all do: whatever says more is none."""

    choices: tuple[_PlainChoice]
    id: msgspec.Raw = msgspec.Raw()
    object: msgspec.Raw = msgspec.Raw()
    created: msgspec.Raw = msgspec.Raw()
    model: msgspec.Raw = msgspec.Raw()
    usage: None = None
    prompt_token_ids: None = None
