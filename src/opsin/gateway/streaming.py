"""From answer events to what goes over the wire: one JSON object, or server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from opsin.core.conversation import Fields
from opsin.core.errors import OpsinError
from opsin.core.stages import Timeline
from opsin.core.warnings import AnswerWarning
from opsin.engine.api import NOTHING, Delta
from opsin.engine.api import Usage as EngineUsage
from opsin.gateway.chat import AnswerEvent, Collected, Done
from opsin.gateway.count import Counted
from opsin.gateway.errors import as_opsin_error
from opsin.gateway.prepare import UsedPicture
from opsin.gateway.relay import Relay, Silence
from opsin.protocol import sse
from opsin.protocol.merge import merged
from opsin.protocol.response import (
    AssistantMessage,
    ChatCompletion,
    ChatCompletionChunk,
    Choice,
    ChunkChoice,
    ChunkDelta,
    Extension,
    FurtherFields,
    ImageReport,
    JsonObject,
    PromptTokensDetails,
    Usage,
    WarningObject,
    encode,
    encode_with,
    error_body,
    now,
)

WARNINGS_HEADER = "x-opsin-warnings"


def to_usage(usage: EngineUsage) -> Usage | None:
    """Usage on the wire; None when an upstream engine told nothing."""
    if usage.prompt_tokens is None or usage.completion_tokens is None:
        return None
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(
            usage.image_tokens,
            usage.cached_tokens,
            None if usage.placeholder_tokens is None else {"image": usage.placeholder_tokens},
        ),
    )


def to_completion(collected: Collected, *, request_id: str, model: str) -> bytes:
    """The whole answer as one JSON object."""
    done = collected.done
    further = FurtherFields(
        answer=merged(further.event for further in collected.further),
        choice=merged(further.choice for further in collected.further),
        text=merged((further.delta for further in collected.further), growing=True),
        usage=_raw(done.usage.further),
    )
    completion = ChatCompletion(
        id=request_id,
        created=now(),
        model=model,
        # OpenAI's null: there are tool calls or reasoning, and no text.
        choices=[Choice(AssistantMessage(collected.text or (None if further.text else "")), done.reason)],
        usage=to_usage(done.usage),
        opsin=_extension(done),
    )
    return encode_with(completion, further)


def _raw(fields: Fields) -> JsonObject:
    return {name: msgspec.Raw(value) for name, value in fields}


def _extension(done: Done) -> Extension:
    warnings = [WarningObject(warning.code, warning.message, warning.param) for warning in done.warnings]
    return Extension(
        timeline=done.timeline.to_wire(),
        stage_sources={stage.value: source for stage, source in done.timeline.sources.items()},
        images=[_report(image) for image in done.images],
        warnings=warnings,
    )


def _report(picture: UsedPicture) -> ImageReport:
    """Of several frames only the first one is used."""
    header, count = picture.header, picture.count
    report = ImageReport(header.format.value, header.upright.width, header.upright.height)
    if header.frames > 1:
        report.frames, report.frames_used = header.frames, 1
    if count is not None:
        report.used_width, report.used_height = count.used.width, count.used.height
        report.tiles, report.image_tokens = count.num_tiles, count.image_tokens
        report.scaled = picture.scaled
    if (sent := picture.sent) is not None:
        report.sent_as = sent.encoding.name
        report.sent_width, report.sent_height = sent.size.width, sent.size.height
    return report


def server_timing(timeline: Timeline) -> str:
    """The ``Server-Timing`` header: one metric per stage, in milliseconds."""
    return ", ".join(f"{name.removesuffix('_ms')};dur={value}" for name, value in timeline.milliseconds().items())


def warnings_header(warnings: Sequence[AnswerWarning]) -> dict[str, str]:
    """Their codes, each once, as a header; none without warnings."""
    codes = dict.fromkeys(warning.code for warning in warnings)
    return {WARNINGS_HEADER: ", ".join(codes)} if codes else {}


@dataclass(slots=True)
class Outcome:
    """How a request ended; neither is set when the client left."""

    done: Done | Counted | None = None
    error: OpsinError | None = None

    @property
    def is_known(self) -> bool:
        """Whether it has ended."""
        return self.done is not None or self.error is not None


async def to_events(
    first: AnswerEvent | Silence,
    rest: Relay[AnswerEvent],
    outcome: Outcome,
    *,
    request_id: str,
    model: str,
    include_usage: bool,
) -> AsyncIterator[bytes]:
    """The events of a stream, those that came together in one piece; a comment where there is nothing to tell yet.

    An error after the first byte is an event of its own, and no ``[DONE]`` follows. With the last piece the outcome is
    known.
    """
    chunks = _Chunks(request_id, model)
    event = first
    piece = bytearray()
    try:
        while not isinstance(event, Done):
            piece += sse.event(chunks.delta(event)) if isinstance(event, Delta) else sse.COMMENT
            if not rest.has_more:
                yield bytes(piece)
                piece.clear()
            event = await anext(rest)
        rest.let_end()
        outcome.done = event
        piece += sse.event(chunks.finish(event))
        if include_usage:
            piece += sse.event(chunks.usage(event.usage))
        piece += sse.DONE
    except Exception as error:  # the border of a stream: whatever failed, the client gets one answer
        outcome.error = as_opsin_error(error, request_id)
        piece += sse.event(error_body(outcome.error))
    yield bytes(piece)


class EventStream(StreamingResponse):
    """Server-sent events. Whoever sends them watches the client and the time."""

    def __init__(self, events: AsyncIterator[bytes], outcome: Outcome, headers: Mapping[str, str]) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no", **headers}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._events = events
        self._outcome = outcome

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for piece in self._events:  # the end goes with the last one, not after it
            await send({"type": "http.response.body", "body": piece, "more_body": not self._outcome.is_known})


class _Chunks:
    """Builds the chunks of one stream; the first one carries the role."""

    def __init__(self, request_id: str, model: str) -> None:
        self._request_id = request_id
        self._model = model
        self._created = now()
        self._role: str | None = "assistant"

    def delta(self, delta: Delta) -> bytes:
        chunk = self._chunk([ChunkChoice(self._delta(delta.text or None))])
        further = delta.further
        if further is NOTHING:
            return encode(chunk)
        fields = FurtherFields(_raw(further.event), _raw(further.choice), _raw(further.delta))
        return encode_with(chunk, fields)

    def finish(self, done: Done) -> bytes:
        chunk = self._chunk([ChunkChoice(self._delta(None), finish_reason=done.reason)])
        chunk.opsin = _extension(done)
        return encode(chunk)

    def usage(self, usage: EngineUsage) -> bytes:
        chunk = self._chunk([])
        chunk.usage = to_usage(usage)
        return encode_with(chunk, FurtherFields(usage=_raw(usage.further)))

    def _delta(self, text: str | None) -> ChunkDelta:
        role, self._role = self._role, None
        return ChunkDelta(role=role, content=text)

    def _chunk(self, choices: list[ChunkChoice]) -> ChatCompletionChunk:
        return ChatCompletionChunk(id=self._request_id, created=self._created, model=self._model, choices=choices)
