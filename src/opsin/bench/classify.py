"""From what was seen of an answer to the one class that it counts as. Pure.

A request is a success when its status is 2xx, no error came in the stream, and a finish reason and ``[DONE]`` ended it;
an answer that says "stop" before any output is whole too. For every other one the first rule below that fits decides,
so that the place of a failure wins over its cause: an engine that runs out of memory in mid-stream is an INBAND_ERROR
with the engine's words in the excerpt, and OOM is a status.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from opsin.bench.record import Outcome
from opsin.bench.wire import WireError, error_of

EXCERPT_CHARS = 300

_OUT_OF_MEMORY = re.compile(r"out.of.memory|OutOfMemory", re.IGNORECASE)
_GIVEN_UP = ("abort", "error")  # vLLM's and SGLang's finish reasons for a request that the engine gave up
_OWN_CLASS = {400: Outcome.HTTP_400, 413: Outcome.HTTP_413, 415: Outcome.HTTP_415, 422: Outcome.HTTP_422}


@dataclass(slots=True, kw_only=True)
class Answer:
    """What there was of one answer, once it is over."""

    status: int | None = None  # None: no head came
    retry_after: bool = False
    is_event_stream: bool = False
    body: bytearray = field(default_factory=bytearray)  # of an answer that is no event stream, its start
    has_output: bool = False
    finish_reason: str | None = None
    has_done: bool = False  # [DONE]
    error: WireError | None = None  # an error event's
    malformed: str | None = None  # what was no chunk, or no HTTP
    is_whole: bool = False  # the body ended as HTTP ends one, and not with the connection


@dataclass(frozen=True, slots=True)
class Judgement:
    """The class, and for a failure what tells a person why: an excerpt, and the server's own code if it gave one."""

    outcome: Outcome
    excerpt: str | None = None
    code: str | None = None


def is_success(status: int) -> bool:
    """2xx."""
    return 200 <= status < 300


def classify(answer: Answer, *, demand_length: bool) -> Judgement:
    """The one class of an answer. ``demand_length``: it had to be as long as asked for."""
    if answer.status is not None and not is_success(answer.status):
        return _of_error(_of_status(answer.status, answer), error_of(bytes(answer.body)))
    if answer.error is not None:
        return _of_error(Outcome.INBAND_ERROR, answer.error)
    if answer.malformed is not None:
        return Judgement(Outcome.PROTOCOL, _excerpt(answer.malformed))
    if answer.status is not None and not answer.is_event_stream:
        return Judgement(Outcome.PROTOCOL, _excerpt("no event stream: " + answer.body.decode(errors="replace")))
    if answer.finish_reason in _GIVEN_UP:
        return Judgement(Outcome.INBAND_ERROR, f"finish_reason {answer.finish_reason}")
    return _of_stream(answer, demand_length=demand_length)


def _of_error(outcome: Outcome, error: WireError) -> Judgement:
    words = error.message or error.type or "an error without words"
    return Judgement(outcome, _excerpt(words), None if error.code is None else str(error.code))


def _of_status(status: int, answer: Answer) -> Outcome:
    if status == 429 or (status == 503 and answer.retry_after):
        return Outcome.SHED
    if _OUT_OF_MEMORY.search(answer.body.decode(errors="replace")):
        return Outcome.OOM
    if status in _OWN_CLASS:
        return _OWN_CLASS[status]
    if 400 <= status < 500:
        return Outcome.HTTP_4XX
    return Outcome.HTTP_5XX if status >= 500 else Outcome.PROTOCOL


def _of_stream(answer: Answer, *, demand_length: bool) -> Judgement:
    ended = answer.finish_reason is not None and answer.has_done
    if not ended and answer.is_whole and not answer.has_output:
        return Judgement(Outcome.EMPTY, "the stream ended without output")
    if not ended:
        return Judgement(Outcome.TRUNCATED, _missing(answer))
    if demand_length and answer.finish_reason != "length":
        return Judgement(Outcome.WRONG_LENGTH, f"finish_reason {answer.finish_reason} with ignore_eos")
    return Judgement(Outcome.OK)


def _missing(answer: Answer) -> str:
    if not answer.is_whole:
        return "the connection ended before the answer"
    return "no finish_reason" if answer.finish_reason is None else "no [DONE]"


def _excerpt(text: str) -> str:
    return " ".join(text.split())[:EXCERPT_CHARS]
