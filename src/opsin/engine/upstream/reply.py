"""Folds the events of one chat stream into deltas and the end. Knows no HTTP and no bytes framing."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from opsin.core.conversation import Fields
from opsin.core.errors import Code, EngineError
from opsin.core.stages import Stage
from opsin.engine.api import NOTHING, Delta, Finished, Further, Usage
from opsin.engine.upstream.dialect import DIALECTS, Dialect, UpstreamKind
from opsin.engine.upstream.failures import empty, inband_error, protocol_error, truncated
from opsin.engine.upstream.halves import Halves
from opsin.engine.upstream.wire import Chunk, PlainChunk, WireExtension, WireUsage

_DONE = b"[DONE]"
_SYNONYMS = {"eos": "stop", "eos_token": "stop", "stop_sequence": "stop"}  # TGI's and llama-server's older words
_ABORTED = ("abort", "error")  # vLLM's and SGLang's reasons for a request that the engine gave up
_decoder = msgspec.json.Decoder(Chunk)
_plain_decoder = msgspec.json.Decoder(PlainChunk)
_usage_decoder = msgspec.json.Decoder(WireUsage, strict=False)  # "5" and 5.0 too: other languages have one number

_READ_OF_EVENT = frozenset({"id", "object", "created", "model", "choices", "usage", "error", "opsin"})
_READ_OF_CHOICE = frozenset({"index", "delta", "finish_reason", "message"})  # some repeat the whole answer at its end
_READ_OF_DELTA = frozenset({"content", "role"})
_READ_OF_USAGE = frozenset({"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"})
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_ABSENT = b"null"
_NULL = msgspec.Raw(_ABSENT)


class Reply:
    """State of one answer: what was counted, whether and why it ended."""

    def __init__(self, dialect: Dialect = DIALECTS[UpstreamKind.AUTO]) -> None:
        self._dialect = dialect
        self.done = False  # [DONE] was seen: nothing that follows counts
        self._reason: str | None = None
        self._usage: WireUsage | None = None
        self._further_usage: Fields = ()
        self._stages_s: dict[Stage, float] = {}
        self._has_output = False
        self._num_counted = 0
        self._halves = Halves()

    def take(self, data: bytes) -> Delta | None:
        """One event's data → what it brings, if anything. Raises what the upstream reports in the stream."""
        if data.strip() == _DONE:
            self.done = True
            return None
        if (plain := _plain(data)) is not None:
            (choice,) = plain.choices
            self._ends(choice.index, choice.finish_reason)
            return self._delta(choice.delta.content or "", NOTHING)
        return self._take_all(*_decode(self._halves.joined(data)))

    def finish(self) -> Finished:
        """The end, once the stream is over. Raises EngineError when it ended without saying why.

        A missing ``[DONE]`` after a finish reason is forgiven: the answer is whole, and some servers never send it.
        """
        if self._reason is None:
            raise truncated() if self._has_output else empty()
        return Finished(self._reason, _usage(self._usage, self._further_usage), stages_s=self._stages_s)

    def _take_all(self, chunk: Chunk, event: dict[str, msgspec.Raw]) -> Delta | None:
        """Whatever else a chunk says."""
        if chunk.error is not None:
            raise inband_error(chunk.error)
        self._usage, self._further_usage = _counts(event.get("usage", _NULL)) or (self._usage, self._further_usage)
        self._stages_s = self._told(chunk, event) or self._stages_s
        if not chunk.choices:
            return None
        choice = chunk.choices[0]
        self._ends(choice.index, choice.finish_reason)
        return self._delta((choice.delta and choice.delta.content) or "", _further(event))

    def _ends(self, index: int, reason: str | None) -> None:
        if index:
            raise protocol_error("a second choice where one was asked for")
        if reason:
            self._reason = _reason(reason)

    def _told(self, chunk: Chunk, event: dict[str, msgspec.Raw]) -> dict[Stage, float]:
        """The stages of an upstream that is an opsin itself, or what its engine reports; none of any other."""
        report = event.get(self._dialect.report or "")
        return _stages_s(chunk.opsin) if report is None else _reported_s(report, self._dialect.stages)

    def _delta(self, text: str, further: Further) -> Delta | None:
        """Tokens of a chunk: what a running usage count says, else 1, which is a guess only chunk by chunk."""
        if not text and not further.delta:
            return Delta("", 0, further) if further != NOTHING else None
        self._has_output = True
        running = self._usage.completion_tokens if self._usage else None
        num_tokens = max(1, running - self._num_counted) if running is not None else 1
        self._num_counted += num_tokens
        return Delta(text, num_tokens, further)


def _plain(data: bytes) -> PlainChunk | None:
    try:
        return _plain_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _decode(data: bytes) -> tuple[Chunk, dict[str, msgspec.Raw]]:
    """What opsin reads, and all fields as they came. A decoder leaves the characters of what it skips unread."""
    try:
        data.decode()
        return _decoder.decode(data), _object.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise protocol_error("an event that is no chat chunk") from None


def _counts(usage: msgspec.Raw) -> tuple[WireUsage, Fields] | None:
    """None where there are none, also for what cannot be read as such: it is no reason to give an answer up."""
    if usage == _NULL:
        return None
    try:
        return _usage_decoder.decode(usage), _fields(_object.decode(usage), _READ_OF_USAGE)
    except (msgspec.DecodeError, RecursionError):
        return None


def _reported_s(report: msgspec.Raw, names: Mapping[Stage, str]) -> dict[Stage, float]:
    """Milliseconds by an engine's own names; what it left out or garbled is not known."""
    try:
        values = _object.decode(report)
    except msgspec.DecodeError:
        return {}
    told = {stage: _milliseconds(values[name]) for stage, name in names.items() if name in values}
    return {stage: ms / 1e3 for stage, ms in told.items() if ms is not None and ms >= 0}


def _milliseconds(value: msgspec.Raw) -> float | None:
    try:
        return msgspec.json.decode(value, type=float | None)
    except msgspec.DecodeError:
        return None


def _stages_s(extension: msgspec.Raw) -> dict[Stage, float]:
    try:
        timeline = msgspec.json.decode(extension, type=WireExtension).timeline
    except msgspec.DecodeError:
        return {}
    return {stage: ms / 1e3 for stage in Stage if (ms := timeline.get(f"{stage}_ms", -1.0)) >= 0}


def _further(event: dict[str, msgspec.Raw]) -> Further:
    choice = _objects.decode(event["choices"])[0]
    delta = _object.decode(choice["delta"]) if choice.get("delta", _NULL) != _NULL else {}
    return Further(_fields(event, _READ_OF_EVENT), _fields(choice, _READ_OF_CHOICE), _fields(delta, _READ_OF_DELTA))


def _fields(of: dict[str, msgspec.Raw], read: frozenset[str]) -> Fields:
    """What is not read, each on one line, as it goes into an event again: no string of JSON holds an end of a line."""
    fields = ((name, bytes(value).replace(b"\n", b" ")) for name, value in of.items() if name not in read)
    return tuple((name, value) for name, value in fields if value != _ABSENT)


def _reason(wire: str) -> str:
    if wire in _ABORTED:
        raise EngineError("the upstream gave the request up", code=Code.UPSTREAM_ERROR)
    return _SYNONYMS.get(wire, wire)


def _usage(wire: WireUsage | None, further: Fields) -> Usage:
    if wire is None:
        return Usage(None, None, None, None)
    details = wire.prompt_tokens_details
    return Usage(
        _counted(wire.prompt_tokens),
        _counted(wire.completion_tokens),
        _counted(details.image_tokens) if details else None,
        _counted(details.cached_tokens) if details else None,
        further,
        _counted(details.multimodal_tokens.image) if details and details.multimodal_tokens else None,
    )


def _counted(count: int | None) -> int | None:
    """Below zero nothing was counted, whatever its server means by it."""
    return None if count is None or count < 0 else count
