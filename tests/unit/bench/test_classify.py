"""Every answer has exactly one class."""

from __future__ import annotations

from typing import Any

import pytest

from opsin.bench.classify import Answer, Judgement, classify
from opsin.bench.record import Outcome
from opsin.bench.wire import WireError


def of(*, demand_length: bool = False, **fields: Any) -> Judgement:
    """A whole answer with some fields changed."""
    values: dict[str, Any] = {
        "status": 200,
        "is_event_stream": True,
        "has_output": True,
        "finish_reason": "stop",
        "has_done": True,
        "is_whole": True,
    }
    return classify(Answer(**{**values, **fields}), demand_length=demand_length)


def refused(status: int, body: bytes = b"{}", *, retry_after: bool = False) -> Outcome:
    return of(status=status, body=bytearray(body), retry_after=retry_after, is_event_stream=False).outcome


def test_success() -> None:
    assert of() == Judgement(Outcome.OK)
    assert of(finish_reason="length", demand_length=True) == Judgement(Outcome.OK)
    assert of(has_output=False).outcome is Outcome.OK  # it ended before the first word, and says so
    assert of(is_whole=False).outcome is Outcome.OK  # the connection broke after [DONE]


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (400, Outcome.HTTP_400),
        (401, Outcome.HTTP_4XX),
        (408, Outcome.HTTP_4XX),
        (413, Outcome.HTTP_413),
        (415, Outcome.HTTP_415),
        (422, Outcome.HTTP_422),
        (429, Outcome.SHED),
        (500, Outcome.HTTP_5XX),
        (503, Outcome.HTTP_5XX),
        (504, Outcome.HTTP_5XX),
        (301, Outcome.PROTOCOL),
    ],
)
def test_by_status(status: int, outcome: Outcome) -> None:
    assert refused(status) is outcome


def test_a_server_that_protects_itself_says_when_to_come_again() -> None:
    assert refused(503, retry_after=True) is Outcome.SHED


@pytest.mark.parametrize(
    "text", [b"CUDA out of memory. Tried", b'{"error":{"code":"engine_out_of_memory"}}', b"OutOfMemoryError"]
)
def test_out_of_memory(text: bytes) -> None:
    assert refused(500, text) is Outcome.OOM
    assert refused(503, text) is Outcome.OOM
    assert refused(503, text, retry_after=True) is Outcome.SHED


def test_what_a_refusal_says() -> None:
    body = b'{"error": {"message": "too\\n  big", "type": "x", "code": "media_too_large"}}'
    assert of(status=413, body=bytearray(body)) == Judgement(Outcome.HTTP_413, "too big", "media_too_large")
    assert of(status=500, body=bytearray(b"<html>")) == Judgement(Outcome.HTTP_5XX, "<html>")
    assert of(status=500, body=bytearray(b'{"error": "loading"}')) == Judgement(Outcome.HTTP_5XX, "loading")
    assert of(status=500, body=bytearray(b'{"message": "bare", "code": 7}')) == Judgement(Outcome.HTTP_5XX, "bare", "7")
    assert len(of(status=500, body=bytearray(b"x" * 9999)).excerpt or "") == 300


def test_an_error_in_the_stream_wins_over_everything_else_of_it() -> None:
    error = WireError(message="CUDA out of memory", code=500)
    assert of(error=error) == Judgement(Outcome.INBAND_ERROR, "CUDA out of memory", "500")
    assert of(error=WireError()).excerpt == "an error without words"
    assert of(finish_reason="abort").outcome is Outcome.INBAND_ERROR


@pytest.mark.parametrize(
    ("fields", "excerpt"),
    [
        ({"has_done": False}, "no [DONE]"),
        ({"finish_reason": None}, "no finish_reason"),
        ({"finish_reason": None, "has_done": False}, "no finish_reason"),
        ({"has_done": False, "is_whole": False}, "the connection ended before the answer"),
        ({"status": None, "has_output": False, "finish_reason": None, "has_done": False, "is_whole": False},
         "the connection ended before the answer"),
    ],
)  # fmt: skip
def test_truncated(fields: dict[str, Any], excerpt: str) -> None:
    assert of(**fields) == Judgement(Outcome.TRUNCATED, excerpt)


def test_empty() -> None:
    assert of(has_output=False, finish_reason=None, has_done=False).outcome is Outcome.EMPTY
    assert of(has_output=False, finish_reason=None, has_done=True).outcome is Outcome.EMPTY


def test_no_stream() -> None:
    judged = of(is_event_stream=False, body=bytearray(b'{"choices": []}'))
    assert judged == Judgement(Outcome.PROTOCOL, 'no event stream: {"choices": []}')
    assert of(malformed="no chunk: {").outcome is Outcome.PROTOCOL


def test_a_demanded_length() -> None:
    assert of(demand_length=True).outcome is Outcome.WRONG_LENGTH
