"""What an OpenAI-compatible server streams, as far as the benchmark reads it. Unknown fields are skipped.

Everything is optional: each engine leaves out something else.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Modalities(msgspec.Struct, frozen=True):
    """vLLM's ``multimodal_tokens``."""

    image: int | None = None


class PromptDetails(msgspec.Struct, frozen=True):
    """Parts of ``prompt_tokens``, never in addition to it."""

    cached_tokens: int | None = None
    image_tokens: int | None = None  # opsin, SGLang
    multimodal_tokens: Modalities | None = None  # vLLM

    @property
    def visual(self) -> int | None:
        """Image tokens in either shape; None when neither is there."""
        if self.image_tokens is not None:
            return self.image_tokens
        return self.multimodal_tokens.image if self.multimodal_tokens else None


class Usage(msgspec.Struct, frozen=True):
    """Token counts."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Delta(msgspec.Struct, frozen=True):
    """What one choice adds. ``reasoning`` and ``reasoning_content`` are two names of one thing."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None
    function_call: dict[str, object] | None = None


class Choice(msgspec.Struct, frozen=True):
    """One choice of a chunk; one is asked for."""

    delta: Delta = Delta()
    finish_reason: str | None = None


class Extension(msgspec.Struct, frozen=True):
    """opsin's own."""

    timeline: dict[str, float] | None = None


class WireError(msgspec.Struct, frozen=True):
    """OpenAI's error object. ``code`` is a word at OpenAI and an HTTP status at vLLM, SGLang and llama-server."""

    message: str | None = None
    type: str | None = None
    code: int | str | None = None


class Chunk(msgspec.Struct, frozen=True):
    """One event of a chat stream: output, the end, usage (then ``choices`` is empty), or an error after HTTP 200."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: WireError | str | None = None
    opsin: Extension | None = None


class _ErrorBody(msgspec.Struct, frozen=True):
    """The body of a refused request: an error object wrapped (OpenAI), bare, or a plain text."""

    error: WireError | str | None = None
    message: str | None = None
    code: int | str | None = None


def error_of(body: bytes) -> WireError:
    """What a refusal says; a body that is no JSON speaks for itself."""
    try:
        refusal = msgspec.json.decode(body, type=_ErrorBody)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return WireError(message=body.decode(errors="replace"))
    match refusal.error:
        case WireError():
            return refusal.error
        case str():
            return WireError(message=refusal.error)
        case None:
            return WireError(message=refusal.message or body.decode(errors="replace"), code=refusal.code)


Bearing = Literal["output", "reasoning"]


def bearing(choice: Choice) -> Bearing | None:
    """Whether an event bears output, and which.

    Text, a refusal and a tool call do. So does an empty text that comes without role and without finish reason: a token
    was made and decodes to nothing yet. A role alone, a finish reason alone and usage do not.
    """
    delta = choice.delta
    if delta.content or delta.refusal or delta.tool_calls or delta.function_call:
        return "output"
    if delta.reasoning or delta.reasoning_content:
        return "reasoning"
    if delta.content == "" and delta.role is None and choice.finish_reason is None:
        return "output"
    return None
