"""Whatever the cuts between reads, an answer is read alike; and which events bear output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsin.bench.classify import classify
from opsin.bench.reading import Reading
from opsin.bench.record import Kind, Outcome, Sight


def a_reading(*, content_type: str = "text/event-stream; charset=utf-8", status: int = 200) -> Reading:
    sight = Sight(id=0, kind=Kind.LOAD, level=0, worker=0, outcome=Outcome.NOT_STARTED, t_sched=0, t_end=0)
    reading = Reading(sight)
    reading.head(1, status, content_type=content_type, retry_after=False)
    return reading


def event(value: object) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def delta(finish_reason: str | None = None, usage: object = None, **fields: Any) -> dict[str, Any]:
    chunk: dict[str, Any] = {"choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}]}
    return chunk if usage is None else {**chunk, "usage": usage}


def read(*pieces: bytes, whole: bool = True) -> Reading:
    """Piece ``i`` arrives at time 10 + i."""
    reading = a_reading()
    for number, piece in enumerate(pieces):
        reading.body(10 + number, piece)
    reading.end(10 + len(pieces), whole=whole)
    return reading


DONE = event(b"[DONE]")
STOP = event(delta("stop"))


@pytest.mark.parametrize(
    "chunk",
    [
        delta(content="a"),
        delta(role="assistant", content="a"),
        delta("stop", content="a"),
        delta(content=""),  # a token that decodes to nothing yet
        delta(reasoning_content="a"),
        delta(reasoning="a"),
        delta(refusal="no"),
        delta(tool_calls=[{"index": 0}]),
        delta(function_call={"name": "f"}),
    ],
)
def test_what_bears_output(chunk: object) -> None:
    sight = read(event(chunk)).sight
    assert (sight.t_1, sight.t_L, sight.events) == (10, 10, [(10, None)])


@pytest.mark.parametrize(
    "data",
    [
        event(delta(role="assistant", content="")),
        event(delta(role="assistant")),
        event(delta()),
        event(delta("stop", content="")),
        event(delta("stop")),
        event({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}),
        event({"choices": []}),
        b": a comment\n\n",
        DONE,
    ],
)
def test_what_does_not(data: bytes) -> None:
    sight = read(data).sight
    assert (sight.t_1, sight.events) == (None, [])


def test_the_times_of_a_whole_answer() -> None:
    sight = read(
        event(delta(role="assistant", content="")),
        event(delta(reasoning_content="hm")),
        event(delta(content="a")),
        event(delta(content="b")) + event(delta(content="c")),
        STOP,
        event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}),
        DONE,
    ).sight
    assert (sight.t_hdr, sight.t_role, sight.t_1, sight.t_o, sight.t_L) == (1, 10, 11, 12, 13)
    assert (sight.t_usage, sight.t_done, sight.finish_reason) == (15, 16, "stop")
    assert sight.events == [(11, None), (12, None), (13, None), (13, None)]
    assert (sight.n_in, sight.n_out) == (9, 4)


def test_running_usage_tells_the_tokens_of_each_event() -> None:
    sight = read(
        event(delta(role="assistant", content="", usage={"prompt_tokens": 9, "completion_tokens": 0})),
        event(delta(content="abc", usage={"prompt_tokens": 9, "completion_tokens": 3})),
        event(delta(content="d", usage={"prompt_tokens": 9, "completion_tokens": 4})),
        event(delta("stop", usage={"prompt_tokens": 9, "completion_tokens": 4})),
        DONE,
    ).sight
    assert sight.events == [(11, 3), (12, 1)]
    assert sight.n_out == 4


@pytest.mark.parametrize(
    ("details", "visual"),
    [
        ({"image_tokens": 64}, 64),
        ({"multimodal_tokens": {"image": 128}}, 128),
        ({"image_tokens": 0, "cached_tokens": 3}, 0),
        ({"cached_tokens": 3}, None),
        (None, None),
    ],
)
def test_visual_tokens_in_either_shape(details: object, visual: int | None) -> None:
    usage = {"prompt_tokens": 200, "completion_tokens": 1, "prompt_tokens_details": details}
    sight = read(event({"choices": [], "usage": usage})).sight
    assert (sight.n_visual, sight.n_in) == (visual, 200)


def test_the_servers_timeline_is_kept() -> None:
    timeline = {"prefill_ms": 3.5, "total_ms": 4}
    assert read(event({**delta("stop"), "opsin": {"timeline": timeline}}), DONE).sight.timeline_ms == timeline


def test_nothing_counts_after_done() -> None:
    sight = read(event(delta(content="a")) + STOP + DONE + event(delta(content="b"))).sight
    assert len(sight.events) == 1


def test_what_is_no_chunk_ends_the_reading() -> None:
    reading = read(event(delta(content="a")), event(b"{no json"), event(delta(content="b")))
    assert reading.is_over
    assert reading.answer.malformed == "no chunk: {no json"
    assert len(reading.sight.events) == 1


def test_of_an_answer_that_is_no_stream_only_the_start_is_kept() -> None:
    reading = a_reading(content_type="application/json", status=500)
    for _ in range(3):
        reading.body(5, b"x" * 40_000)
    assert len(reading.answer.body) == 64 * 2**10


CHUNKS: list[dict[str, Any]] = [
    delta(role="assistant", content=""),
    delta(content="빨간 원 🙂"),
    delta(content="a\u2028b\u0085c"),
    delta(content=""),
    delta(reasoning="생각"),
    delta("length", content="끝"),
    {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
    {"error": {"message": "없음", "code": 500}},
]


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Events in all framings that the standard knows, and comments between them."""
    newline = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    lines = list[str]()
    for chunk in draw(st.lists(st.sampled_from(CHUNKS), max_size=6)):
        text = json.dumps(chunk, ensure_ascii=draw(st.booleans()))
        lines += draw(st.lists(st.sampled_from([": waiting", "event: x", "id: 1"]), max_size=1))
        lines += [f"data:{draw(st.sampled_from(['', ' ']))}{text}", ""]
    if draw(st.booleans()):
        lines += ["data: [DONE]", ""]
    return "".join(line + newline for line in lines).encode()


def _cut(stream: bytes, cuts: Sequence[int]) -> list[bytes]:
    bounds = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    return [stream[start:end] for start, end in zip(bounds, [*bounds[1:], len(stream)], strict=True)]


def _what(reading: Reading) -> object:
    """Everything but times."""
    sight = msgspec.structs.asdict(reading.sight)
    told = {name: value for name, value in sight.items() if not name.startswith("t_") and name != "events"}
    return told, [tokens for _, tokens in reading.sight.events], reading.answer


@given(streams(), st.lists(st.integers(0, 900), max_size=20), st.booleans())
def test_any_cut_reads_alike(stream: bytes, cuts: list[int], whole: bool) -> None:
    cut, at_once = read(*_cut(stream, cuts), whole=whole), read(stream, whole=whole)
    assert _what(cut) == _what(at_once)
    assert classify(cut.answer, demand_length=False) == classify(at_once.answer, demand_length=False)


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_no_bytes_are_too_much(pieces: list[bytes]) -> None:
    reading = read(*pieces)
    assert classify(reading.answer, demand_length=False).outcome is not Outcome.OK
