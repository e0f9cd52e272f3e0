"""One stream's events → deltas, the end, and the counts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from opsin.core.errors import EngineError
from opsin.core.stages import Stage
from opsin.engine.api import Delta, Finished, Further, Usage
from opsin.engine.upstream.reply import Reply


def chunk(content: str | None = None, *, reason: str | None = None, usage: Any = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": {**delta, "content": content}, "finish_reason": reason}
    return json.dumps({"id": "x", "choices": [choice], "usage": usage}).encode()


def usage_chunk(**usage: Any) -> bytes:
    return json.dumps({"choices": [], "usage": usage}).encode()


def replay(*events: bytes) -> tuple[list[Delta], Finished]:
    reply = Reply()
    deltas = [delta for event in events if (delta := reply.take(event)) is not None]
    return deltas, reply.finish()


def test_a_whole_answer() -> None:
    deltas, end = replay(
        chunk("", role="assistant"),
        chunk("a"),
        chunk(None),
        chunk(" b"),
        chunk("", reason="length"),
        usage_chunk(prompt_tokens=9, completion_tokens=5, prompt_tokens_details={"cached_tokens": 4}),
        b" [DONE]",
    )
    assert deltas == [Delta("a", 1), Delta(" b", 1)]
    assert end == Finished("length", Usage(9, 5, None, 4), stages_s={})


@pytest.mark.parametrize("delta", [{}, {"content": "a"}, {"content": None}, {"role": "assistant", "content": ""}])
@pytest.mark.parametrize("reason", [None, "stop", "eos_token"])
def test_a_chunk_of_text_alone_is_read_as_one_that_says_more(delta: dict[str, object], reason: str | None) -> None:
    plain: dict[str, object] = {
        "id": "x",
        "choices": [{"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}],
    }
    alike: dict[str, object] = {**plain, "of_no_engine": None}
    assert _read_of(plain) == _read_of(alike)


def _read_of(event: dict[str, object]) -> object:
    return replay(json.dumps(event).encode(), chunk("b", reason="length"))


def test_what_opsin_does_not_read_comes_as_it_was() -> None:
    event = (
        b'{"id":"x","system_fingerprint":"fp","usage":null,"choices":[{"index":0,"stop_reason":null,'
        b'"logprobs":{"content":[{"logprob":-0.10000000000000001}]},"delta":{"content":null,'
        b'"tool_calls":[{"index":0}]}}]}'
    )
    deltas, end = replay(
        event, chunk(reason="tool_calls"), usage_chunk(prompt_tokens=9, completion_tokens=5, x={"y": 1})
    )
    assert deltas == [
        Delta(
            "",
            1,
            Further(
                event=(("system_fingerprint", b'"fp"'),),
                choice=(("logprobs", b'{"content":[{"logprob":-0.10000000000000001}]}'),),
                delta=(("tool_calls", b'[{"index":0}]'),),
            ),
        )
    ]
    assert (end.reason, end.usage.further) == ("tool_calls", (("x", b'{"y": 1}'),))


def test_what_comes_on_several_lines_goes_on_one() -> None:
    deltas, _ = replay(b'{"choices":[{"delta":{"tool_calls":[\n\n{"index":\n0}]},"finish_reason":"stop"}]}')
    assert deltas == [Delta("", 1, Further(delta=(("tool_calls", b'[  {"index": 0}]'),)))]


def test_a_whole_message_beside_the_last_delta_is_not_passed_on() -> None:
    end = b'{"choices":[{"index":0,"delta":{},"message":{"content":"a"},"finish_reason":"stop"}]}'
    assert replay(chunk("a"), end)[0] == [Delta("a", 1)]


def test_null_stands_for_no_choice_and_no_delta() -> None:
    nulls = (b'{"choices":null}', b'{"choices":[{"index":0,"delta":null,"finish_reason":"stop"}]}')
    assert replay(chunk("a"), *nulls)[0] == [Delta("a", 1)]


def test_what_stands_beside_no_output_counts_no_token() -> None:
    deltas, _ = replay(
        json.dumps({"choices": [{"delta": {"role": "assistant"}}], "fp": 1}).encode(), chunk("a", reason="stop")
    )
    assert deltas == [Delta("", 0, Further(event=(("fp", b"1"),))), Delta("a", 1)]


@pytest.mark.parametrize(
    ("wire", "reason"), [("eos_token", "stop"), ("content_filter", "content_filter"), ("repetition", "repetition")]
)
def test_reasons_pass_unless_they_are_another_word_for_the_usual_one(wire: str, reason: str) -> None:
    _, end = replay(chunk("a", reason=wire))
    assert end.reason == reason


def test_the_stages_of_an_upstream_that_is_an_opsin() -> None:
    last: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    timeline = {"preprocess_ms": 2.0, "queue_ms": 0.0, "decode_ms": 250.0, "unattributed_ms": 9.0, "total_ms": 261.0}
    _, end = replay(chunk("a"), json.dumps({**last, "opsin": {"timeline": timeline}}).encode(), usage_chunk())
    assert end.stages_s == {Stage.PREPROCESS: 0.002, Stage.QUEUE: 0.0, Stage.DECODE: 0.25}
    for strange in (
        None,
        7,
        {},
        {"timeline": None},
        {"timeline": {"decode_ms": "long"}},
        {"timeline": {"decode_ms": -1}},
    ):
        _, end = replay(chunk("a"), json.dumps({**last, "opsin": strange}).encode())
        assert end.stages_s == {}


@pytest.mark.parametrize(
    ("details", "image_tokens", "placeholder_tokens"),
    [
        ({"image_tokens": 64}, 64, None),
        ({"image_tokens": 0}, 0, None),
        ({"multimodal_tokens": {"image": 64, "video": 0}}, None, 64),
        ({"multimodal_tokens": None}, None, None),
        ({}, None, None),
        (None, None, None),
        ({"image_tokens": -1}, None, None),
        ({"multimodal_tokens": {"image": -1}}, None, None),
    ],
)
def test_image_tokens_in_every_shape(details: Any, image_tokens: int | None, placeholder_tokens: int | None) -> None:
    usage = {"prompt_tokens": 80, "completion_tokens": 1, "prompt_tokens_details": details}
    _, end = replay(chunk("a", reason="stop"), usage_chunk(**usage))
    assert (end.usage.image_tokens, end.usage.placeholder_tokens) == (image_tokens, placeholder_tokens)
    assert end.usage.prompt_tokens == 80


def test_a_count_below_zero_is_none() -> None:
    wrong = {"prompt_tokens": -1, "completion_tokens": -1, "prompt_tokens_details": {"cached_tokens": -1}}
    _, end = replay(chunk("a", reason="stop"), usage_chunk(**wrong))
    assert end.usage == Usage(None, None, None, None)


@pytest.mark.parametrize(
    ("prompt", "counted"),
    [("80", 80), (80.0, 80), (80.5, None), (True, None), ("many", None), ([], None), (None, None)],
)
def test_a_number_of_another_kind_is_a_count_and_anything_else_is_none(prompt: object, counted: int | None) -> None:
    _, end = replay(chunk("a", reason="stop"), usage_chunk(prompt_tokens=prompt))
    assert end.usage.prompt_tokens == counted


@pytest.mark.parametrize("usage", [b"[]", b'"5"', b"5", b'{"prompt_tokens":5,"prompt_tokens_details":[]}'])
def test_usage_of_no_known_shape_costs_no_answer(usage: bytes) -> None:
    deltas, end = replay(chunk("a", reason="stop"), b'{"choices":[],"usage":' + usage + b"}")
    assert (deltas, end.usage) == ([Delta("a", 1)], Usage(None, None, None, None))


def test_a_character_in_two_events_is_one() -> None:
    deltas, _ = replay(
        _text(rb"a \\ud83d \ud83d"),
        _text(rb"\ude00!"),
        _text(rb"\ude00 \ud83d\ude00 \ud83d"),
        chunk("b", reason="stop"),
    )
    assert [delta.text for delta in deltas] == ["a \\ud83d ", "\U0001f600!", "\ufffd \U0001f600 ", "b"]
    calls = [b'{"choices":[{"delta":{"reasoning":"%s"}}]}' % half for half in (rb"\ud83d", rb"\ude00")]
    deltas, _ = replay(*calls, chunk("b", reason="stop"))
    told = [value for delta in deltas for name, value in delta.further.delta if name == "reasoning"]
    assert json.loads(b"".join(told).replace(b'""', b"")) == "\U0001f600"


def _text(escaped: bytes) -> bytes:
    return b'{"choices":[{"delta":{"content":"%s"}}]}' % escaped


def test_no_usage_is_no_count() -> None:
    _, end = replay(chunk("a"), chunk("b", reason="stop"))
    assert end.usage == Usage(None, None, None, None)


def test_running_usage_counts_the_tokens_of_a_chunk() -> None:
    deltas, _ = replay(
        chunk("abc", usage={"completion_tokens": 3}),
        chunk("d", usage={"completion_tokens": 4}),
        chunk("", usage={"completion_tokens": 5}),
        chunk("ef", usage={"completion_tokens": 7}, reason="stop"),
    )
    assert [delta.num_tokens for delta in deltas] == [3, 1, 3]


@pytest.mark.parametrize(
    ("wire", "ours"),
    [
        ("stop", "stop"),
        ("eos_token", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("tool_calls", "tool_calls"),
        ("function_call", "function_call"),
    ],
)
def test_finish_reasons(wire: str, ours: str) -> None:
    assert replay(chunk("a", reason=wire))[1].reason == ours


def test_a_legitimate_stop_without_text() -> None:
    assert replay(chunk("", reason="stop"), usage_chunk(completion_tokens=1)) == (
        [],
        Finished("stop", Usage(None, 1, None, None), stages_s={}),
    )


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ((), "upstream_empty"),
        ((b"[DONE]",), "upstream_empty"),
        ((chunk("", role="assistant"), b"[DONE]"), "upstream_empty"),
        ((chunk("a"),), "upstream_truncated"),
        ((chunk("a"), b"[DONE]"), "upstream_truncated"),
        ((chunk("a", reason="abort"),), "upstream_error"),
        ((b"{",), "upstream_protocol"),
        ((b'{"choices":[{"delta":{"content":7}}]}',), "upstream_protocol"),
        ((b'{"choices":[{"delta":{"content":"\xff"}}]}',), "upstream_protocol"),
        ((b'{"choices":[{"delta":{"content":"a","reasoning":"\xff"}}]}',), "upstream_protocol"),
        ((b'{"choices":[{"delta":{"content":"a","\xff":1}}]}',), "upstream_protocol"),
        ((b'{"choices":[],"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}",), "upstream_protocol"),
        ((b'{"choices":[{"index":1,"delta":{"content":"a"}}]}',), "upstream_protocol"),
        ((b'{"error":{"message":"x"}}',), "upstream_error"),
        ((chunk("a"), b'{"error":"x","choices":[]}'), "upstream_error"),
    ],
)
def test_every_broken_end(events: tuple[bytes, ...], code: str) -> None:
    with pytest.raises(EngineError) as caught:
        replay(*events)
    assert caught.value.code == code
