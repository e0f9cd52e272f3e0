"""Reads one answer, piece by piece, and keeps what it finds under the time of the read. Knows no socket, no clock."""

from __future__ import annotations

import msgspec

from opsin.bench.classify import EXCERPT_CHARS, Answer, is_success
from opsin.bench.record import Sight
from opsin.bench.wire import Chunk, Usage, WireError, bearing
from opsin.core.sse import MAX_EVENT_BYTES, EventTooLarge, SseParser

MAX_OTHER_BODY_BYTES = 64 * 2**10
"""Kept of an answer that is no event stream."""

_DONE = b"[DONE]"
_decoder = msgspec.json.Decoder(Chunk)


class Reading:
    """Fills in a :class:`Sight` and an :class:`Answer` as an answer arrives. ``t``: ns, when the read returned.

    Several events of one read get one time: they came at one time.
    """

    def __init__(self, sight: Sight) -> None:
        self.sight = sight
        self.answer = Answer()
        self._parser = SseParser()

    def head(self, t: int, status: int, *, content_type: str, retry_after: bool) -> None:
        """The response's head."""
        self.sight.t_hdr = t
        self.sight.http = self.answer.status = status
        self.answer.retry_after = retry_after
        self.answer.is_event_stream = content_type.startswith("text/event-stream")

    def body(self, t: int, data: bytes) -> None:
        """A piece of the body."""
        answer = self.answer
        if answer.malformed is not None or answer.has_done:
            return
        if answer.status is None or not is_success(answer.status) or not answer.is_event_stream:
            answer.body += data[: MAX_OTHER_BODY_BYTES - len(answer.body)]
            return
        try:
            events = self._parser.feed(data)
        except EventTooLarge:
            answer.malformed = f"one event of over {MAX_EVENT_BYTES} bytes"
            return
        for event in events:
            self._event(t, event)

    def broken(self, what: str) -> None:
        """The bytes are no HTTP."""
        self.answer.malformed = self.answer.malformed or what

    def end(self, t: int, *, whole: bool) -> None:
        """The body is over, as HTTP ends one or with the connection."""
        self.answer.is_whole = whole
        if whole and self.sight.t_done is None:
            self.sight.t_done = t

    @property
    def is_over(self) -> bool:
        """Whether nothing that follows can matter."""
        return self.answer.has_done or self.answer.malformed is not None

    def _event(self, t: int, data: bytes) -> None:
        if self.is_over:
            return
        if self.sight.t_role is None:
            self.sight.t_role = t
        if data.strip() == _DONE:
            self.answer.has_done = True
            self.sight.t_done = t
            return
        try:
            chunk = _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.answer.malformed = f"no chunk: {data[:EXCERPT_CHARS].decode(errors='replace')}"
            return
        self._chunk(t, chunk)

    def _chunk(self, t: int, chunk: Chunk) -> None:
        if chunk.error is not None:
            self.answer.error = WireError(message=chunk.error) if isinstance(chunk.error, str) else chunk.error
            return
        num_tokens = self._usage(t, chunk.usage) if chunk.usage is not None else None
        if chunk.opsin is not None and chunk.opsin.timeline is not None:
            self.sight.timeline_ms = chunk.opsin.timeline
        if not chunk.choices:
            return
        choice = chunk.choices[0]
        if choice.finish_reason is not None:
            self.answer.finish_reason = self.sight.finish_reason = choice.finish_reason
        kind = bearing(choice)
        if kind is not None:
            self._output(t, num_tokens, is_reasoning=kind == "reasoning")

    def _output(self, t: int, num_tokens: int | None, *, is_reasoning: bool) -> None:
        self.answer.has_output = True
        sight = self.sight
        sight.events.append((t, num_tokens))
        sight.t_L = t
        if sight.t_1 is None:
            sight.t_1 = t
        if sight.t_o is None and not is_reasoning:
            sight.t_o = t

    def _usage(self, t: int, usage: Usage) -> int | None:
        """Keeps the counts, the latest of which hold; returns the tokens that came since the last ones."""
        sight, details = self.sight, usage.prompt_tokens_details
        sight.t_usage = t
        if usage.prompt_tokens is not None:
            sight.n_in = usage.prompt_tokens
        if details is not None and details.visual is not None:
            sight.n_visual = details.visual
        if details is not None and details.cached_tokens is not None:
            sight.n_cached = details.cached_tokens
        if usage.completion_tokens is None:
            return None
        added = usage.completion_tokens - (sight.n_out or 0)
        sight.n_out = usage.completion_tokens
        return added
