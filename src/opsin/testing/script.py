"""What a scripted upstream answers: one :class:`Script` is the whole truth of one answer, times included.

:func:`play` turns it into the events of the stream. Knows no HTTP server. Faults are data, so that a new one is a field
here or an entry of :data:`MODES`, not a branch elsewhere.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field, replace
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
    HANG = "hang"  # nothing more, on an open connection


class EventKind(StrEnum):
    """What one event of the stream is; OUTPUT and REASONING bear tokens."""

    ROLE = "role"
    REASONING = "reasoning"
    OUTPUT = "output"
    FINISH = "finish"
    USAGE = "usage"
    DONE = "done"
    ERROR = "error"


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


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens that go out in one event; ``kind`` is OUTPUT or REASONING."""

    kind: EventKind
    text: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Event:
    """One event as it goes out; ``num_tokens`` is how many it bears."""

    kind: EventKind
    data: bytes
    num_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One answer. Every token is one word of ``text`` with the space before it.

    Times are due times from the arrival of the whole request, so that no delay adds up: the head of the response comes
    at once, token ``i`` (from 0) is due at ``ttft_s + i * itl_s``, and a chunk goes out when its first token is due.
    """

    text: str = "A red circle is left of a blue square."
    echo: bool = False  # the text is the last one of the request instead
    reasoning: str = ""  # comes before ``text``, in tokens and chunks of its own
    events: tuple[Mapping[str, object], ...] = ()  # after the text, as they are: what else engines may say
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
    beside_usage: Mapping[str, object] = field(default_factory=dict[str, object])  # vLLM's metrics, llama.cpp's timings
    timeline: Mapping[str, float] | None = None  # ``opsin.timeline`` on the finish chunk, in milliseconds
    # faults
    upload_bytes_per_s: float | None = None  # the body is taken no faster
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
        """The tokens of ``text``; joined they are it."""
        return _tokens(self.text)

    @property
    def num_tokens(self) -> int:
        """All tokens of the answer, as usage counts them."""
        return len(self.tokens) + len(_tokens(self.reasoning))

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The chunks that go out."""
        chunks = (*self._cut(EventKind.REASONING, self.reasoning), *self._cut(EventKind.OUTPUT, self.text))
        return chunks if self.end is End.DONE else chunks[: self.end_after_chunks]

    def _cut(self, kind: EventKind, text: str) -> Iterator[Chunk]:
        size, tokens = self.tokens_per_chunk, _tokens(text)
        for at in range(0, len(tokens), size):
            taken = tokens[at : at + size]
            yield Chunk(kind, "".join(taken), len(taken))


def _tokens(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\s*\S+|\s+$", text))


OUT_OF_MEMORY = Failure(message="CUDA out of memory. Tried to allocate 2.00 GiB", type="InternalServerError", code=500)
CONTEXT_LENGTH = Failure(
    message="This model's maximum context length is 4096 tokens. However, your request has 5000 input tokens.",
    type="invalid_request_error",
    code="context_length_exceeded",
)
FULL = Failure(message="Too many requests", type="rate_limit_error", code="rate_limit_exceeded")

FORTY_TOKENS = " ".join(f"word{number}" for number in range(40))
MODES: Mapping[str, Script] = {
    "ok": Script(),
    "slow": Script(ttft_s=0.5, itl_s=0.1),
    # First content after 150 ms, last after 330 ms, 40 tokens in 10 chunks, usage after 630 ms: the stream of which
    # four benchmarks report four different speeds.
    "multi_token_chunk": Script(
        text=FORTY_TOKENS, role_chunk_s=0.05, ttft_s=0.15, itl_s=0.005, tokens_per_chunk=4, usage_delay_s=0.3,
        finish_reason="length",
    ),
    "split_utf8": Script(text="빨간 원 🙂 and a\u2028line\u0085separator", ttft_s=0.05, itl_s=0.01, write_bytes=3),
    "running_usage": Script(text=FORTY_TOKENS, ttft_s=0.05, itl_s=0.005, tokens_per_chunk=4, running_usage=True),
    "no_usage": Script(usage=False),
    "role_only_first_chunk": Script(role_chunk_s=0.0, ttft_s=0.1),
    "usage_chunk_late": Script(usage_delay_s=0.3),
    "reasoning": Script(reasoning="Let me look.", ttft_s=0.05, itl_s=0.01),
    "in_band_error": Script(end=End.ERROR, end_after_chunks=2, failure=OUT_OF_MEMORY),
    "truncated": Script(end=End.CUT, end_after_chunks=2),
    "reset": Script(end=End.RESET, end_after_chunks=2),
    "empty": Script(end=End.CUT, end_after_chunks=0, role_chunk_s=None),
    "hang": Script(end=End.HANG, end_after_chunks=2),
    "slow_upload": Script(upload_bytes_per_s=10e6),
    "drop_image": Script(prompt_tokens=36, image_tokens=0),
    "encoded": Script(
        image_tokens=64, cached_tokens=0, ttft_s=0.1,
        timeline={"media_load_ms": 5, "preprocess_ms": 10, "vision_encode_ms": 60, "prefill_ms": 25, "total_ms": 100},
    ),
    "cached": Script(
        image_tokens=64, cached_tokens=80, ttft_s=0.03,
        timeline={"media_load_ms": 5, "prefill_ms": 25, "total_ms": 30},
    ),
    "http_500": Script(status=500, failure=OUT_OF_MEMORY),
    "http_400_context": Script(status=400, failure=CONTEXT_LENGTH),
    "http_429": Script(status=429, failure=FULL, retry_after="7"),
}  # fmt: skip
"""By the name of the model that a request asks for."""

_STEADY = Script(text=FORTY_TOKENS, ttft_s=0.05, itl_s=0.005)
MIXES: Mapping[str, tuple[Script, ...]] = {
    "mix_24_16": (
        *(_STEADY,) * 6,
        replace(_STEADY, end=End.ERROR, end_after_chunks=12, failure=OUT_OF_MEMORY),
        replace(_STEADY, end=End.CUT, end_after_chunks=12),
        MODES["http_500"],
        MODES["empty"],
    ),
}
"""As MODES, but the scripts of one name answer in turn, so that any so many requests in a row meet each of them."""


class ConnectionReset(Exception):
    """Raised by :func:`play` where the script breaks the connection."""


async def play(script: Script, model: str, *, include_usage: bool) -> AsyncIterator[Event]:
    """The stream, event by event, each when it is due; then ConnectionReset if the script says so."""
    clock = _Clock()
    frame = _Framing(script, model)
    if script.role_chunk_s is not None:
        await clock.until(script.role_chunk_s)
        yield frame.role()
    num_tokens = 0
    for chunk in script.chunks:
        await clock.until(script.ttft_s + num_tokens * script.itl_s)
        num_tokens += chunk.num_tokens
        yield frame.tokens(chunk, num_tokens)
    for fields in script.events:
        yield frame.verbatim(fields)
    match script.end:
        case End.CUT:
            return
        case End.RESET:
            raise ConnectionReset
        case End.HANG:
            await asyncio.Event().wait()
        case End.ERROR:
            yield frame.event(EventKind.ERROR, error_body(script))
        case End.DONE:
            yield frame.finish()
            if include_usage and script.usage:
                await asyncio.sleep(script.usage_delay_s)
                yield frame.usage()
            yield frame.event(EventKind.DONE, b"[DONE]")


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

    def role(self) -> Event:
        return self._delta(EventKind.ROLE, {"role": "assistant", "content": ""}, {})

    def tokens(self, chunk: Chunk, sent_tokens: int) -> Event:
        field = "reasoning_content" if chunk.kind is EventKind.REASONING else "content"
        running: dict[str, object] = {"usage": self._counts(sent_tokens)} if self._script.running_usage else {}
        return self._delta(chunk.kind, {field: chunk.text}, running, num_tokens=chunk.num_tokens)

    def verbatim(self, fields: Mapping[str, object]) -> Event:
        return self.event(EventKind.OUTPUT, msgspec.json.encode({**self._head, **fields}))

    def finish(self) -> Event:
        timeline = self._script.timeline
        extension: dict[str, object] = {} if timeline is None else {"opsin": {"timeline": timeline}}
        return self._delta(EventKind.FINISH, {}, extension, finish_reason=self._script.finish_reason)

    def usage(self) -> Event:
        counts = self._counts(self._script.num_tokens)
        event: dict[str, object] = {**self._head, "choices": [], "usage": counts, **self._script.beside_usage}
        return self.event(EventKind.USAGE, msgspec.json.encode(event))

    def event(self, kind: EventKind, data: bytes, num_tokens: int = 0) -> Event:
        end = self._script.newline.encode()
        return Event(kind, b"data: " + data + end + end, num_tokens)

    def _delta(
        self,
        kind: EventKind,
        delta: dict[str, str],
        beside_choices: dict[str, object],
        *,
        finish_reason: str | None = None,
        num_tokens: int = 0,
    ) -> Event:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return self.event(kind, msgspec.json.encode({**self._head, "choices": [choice], **beside_choices}), num_tokens)

    def _counts(self, completion_tokens: int) -> dict[str, object]:
        script = self._script
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
