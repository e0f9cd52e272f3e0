"""What a scripted upstream answers: one :class:`Script` is the whole truth of one answer, times included.

:func:`play` turns it into the events of the stream. Knows no HTTP server. Faults are data, so that a new one is a field
here or an entry of :data:`MODES`, not a branch elsewhere.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import msgspec

from opsin.core.errors import InvalidRequest


class End(StrEnum):
    """How a stream ends."""

    DONE = "done"  # finish reason, usage, [DONE]
    CUT = "cut"  # a clean end of the body, and nothing of the above
    RESET = "reset"  # the connection breaks
    ERROR = "error"  # an error event, then a clean end: how an engine's failure looks once HTTP 200 is out


class UsageShape(StrEnum):
    """Where image tokens stand in usage; there is no standard."""

    IMAGE_TOKENS = "image_tokens"  # SGLang
    MULTIMODAL_TOKENS = "multimodal_tokens"  # vLLM


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """OpenAI's error object; sent as a body (``Script.status`` not 200) or as an event (``End.ERROR``)."""

    message: str
    type: str
    code: int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One answer. Every token is one word of ``text`` with the space before it.

    Times are due times from the arrival of the whole request, so that no delay adds up: the head of the response comes
    at once, token ``i`` (from 0) is due at ``ttft_s + i * itl_s``, and a chunk goes out when its first token is due.
    """

    text: str = "A red circle is left of a blue square."
    finish_reason: str = "stop"
    ttft_s: float = 0.0
    itl_s: float = 0.0
    tokens_per_chunk: int = 1
    role_chunk_s: float | None = 0.0  # due time of the first delta, which has a role and no text; None: not sent
    # usage; image and cached tokens are parts of prompt_tokens, None: not told
    usage: bool = True
    usage_delay_s: float = 0.0  # after the finish reason
    usage_shape: UsageShape = UsageShape.IMAGE_TOKENS
    running_usage: bool = False  # on every chunk, as vLLM's continuous_usage_stats
    prompt_tokens: int = 100
    image_tokens: int | None = None
    cached_tokens: int | None = None
    # faults
    status: int = 200
    retry_after: str | None = None
    failure: Failure | None = None
    end: End = End.DONE
    end_after_chunks: int | None = None  # chunks of text before an end other than DONE; None: all
    # framing
    newline: Literal["\n", "\r\n", "\r"] = "\n"
    write_bytes: int | None = None  # the stream goes out in writes of so many bytes; None: one write per event

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens; joined they are ``text``."""
        return tuple(re.findall(r"\s*\S+|\s+$", self.text))

    @property
    def chunks(self) -> tuple[str, ...]:
        """The texts of the chunks that go out."""
        size, tokens = self.tokens_per_chunk, self.tokens
        chunks = tuple("".join(tokens[at : at + size]) for at in range(0, len(tokens), size))
        return chunks if self.end is End.DONE else chunks[: self.end_after_chunks]


OUT_OF_MEMORY = Failure(message="CUDA out of memory. Tried to allocate 2.00 GiB", type="InternalServerError", code=500)
CONTEXT_LENGTH = Failure(
    message="This model's maximum context length is 4096 tokens. However, your request has 5000 input tokens.",
    type="invalid_request_error",
    code="context_length_exceeded",
)
FULL = Failure(message="Too many requests", type="rate_limit_error", code="rate_limit_exceeded")

MODES: Mapping[str, Script] = {
    "ok": Script(),
    "slow": Script(ttft_s=0.5, itl_s=0.1),
    "no_usage": Script(usage=False),
    "role_only_first_chunk": Script(role_chunk_s=0.0, ttft_s=0.1),
    "usage_chunk_late": Script(usage_delay_s=0.3),
    "in_band_error": Script(end=End.ERROR, end_after_chunks=2, failure=OUT_OF_MEMORY),
    "truncated": Script(end=End.CUT, end_after_chunks=2),
    "reset": Script(end=End.RESET, end_after_chunks=2),
    "empty": Script(end=End.CUT, end_after_chunks=0, role_chunk_s=None),
    "http_500": Script(status=500, failure=OUT_OF_MEMORY),
    "http_400_context": Script(status=400, failure=CONTEXT_LENGTH),
    "http_429": Script(status=429, failure=FULL, retry_after="7"),
}
"""By the name of the model that a request asks for."""


class ConnectionReset(Exception):
    """Raised by :func:`play` where the script breaks the connection."""


async def play(script: Script, model: str, *, include_usage: bool) -> AsyncIterator[bytes]:
    """The stream, event by event, each when it is due; then ConnectionReset if the script says so."""
    clock = _Clock()
    frame = _Framing(script, model)
    if script.role_chunk_s is not None:
        await clock.until(script.role_chunk_s)
        yield frame.chunk({"role": "assistant", "content": ""})
    for index, text in enumerate(script.chunks):
        await clock.until(script.ttft_s + index * script.tokens_per_chunk * script.itl_s)
        yield frame.chunk({"content": text}, num_tokens=(index + 1) * script.tokens_per_chunk)
    match script.end:
        case End.CUT:
            return
        case End.RESET:
            raise ConnectionReset
        case End.ERROR:
            yield frame.data(error_body(script))
        case End.DONE:
            yield frame.chunk({}, finish_reason=script.finish_reason)
            if include_usage and script.usage:
                await asyncio.sleep(script.usage_delay_s)
                yield frame.usage()
            yield frame.data(b"[DONE]")


def error_body(script: Script) -> bytes:
    """The JSON of the script's failure."""
    return msgspec.json.encode({"error": script.failure})


def parse_scripts(body: bytes) -> list[Script]:
    """A JSON list of scripts: fields of :class:`Script`, and ``mode``, the entry of MODES that absent fields come from.

    Raises InvalidRequest.
    """
    try:
        return [_parse(fields) for fields in msgspec.json.decode(body, type=list[dict[str, object]])]
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"expected a JSON list of scripts: {error}") from None


def _parse(fields: dict[str, object]) -> Script:
    mode = MODES.get(str(fields.pop("mode", "ok")))
    if mode is None:
        raise InvalidRequest(f"expected a mode of {', '.join(MODES)}")
    return msgspec.convert(msgspec.to_builtins(mode) | fields, type=Script)


class _Clock:
    """Sleeps to due times, not for durations."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time()

    async def until(self, due_s: float) -> None:
        await asyncio.sleep(max(0.0, self._start + due_s - self._loop.time()))


class _Framing:
    """Chat chunks as events."""

    def __init__(self, script: Script, model: str) -> None:
        self._script = script
        self._head = {"id": "chatcmpl-scripted", "object": "chat.completion.chunk", "created": 0, "model": model}

    def chunk(self, delta: dict[str, str], *, finish_reason: str | None = None, num_tokens: int = 0) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        running = {"usage": self._counts(num_tokens)} if self._script.running_usage and num_tokens else {}
        return self.data(msgspec.json.encode({**self._head, "choices": [choice], **running}))

    def usage(self) -> bytes:
        counts = self._counts(len(self._script.tokens))
        return self.data(msgspec.json.encode({**self._head, "choices": [], "usage": counts}))

    def data(self, data: bytes) -> bytes:
        end = self._script.newline.encode()
        return b"data: " + data + end + end

    def _counts(self, completion_tokens: int) -> dict[str, object]:
        script = self._script
        completion_tokens = min(completion_tokens, len(script.tokens))
        return {
            "prompt_tokens": script.prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": script.prompt_tokens + completion_tokens,
            "prompt_tokens_details": _details(script),
        }


def _details(script: Script) -> dict[str, object] | None:
    details: dict[str, object] = {}
    if script.cached_tokens is not None:
        details["cached_tokens"] = script.cached_tokens
    if script.image_tokens is not None:
        vllm = script.usage_shape is UsageShape.MULTIMODAL_TOKENS
        details |= (
            {"multimodal_tokens": {"image": script.image_tokens}} if vllm else {"image_tokens": script.image_tokens}
        )
    return details or None
