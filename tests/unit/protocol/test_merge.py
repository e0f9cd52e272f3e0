"""The fields of many events as one answer has them; OpenAI's own client is the oracle."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.lib.streaming._deltas import accumulate_delta

from opsin.core.errors import EngineError
from opsin.protocol.merge import merged


def of(*events: dict[str, Any], growing: bool = True) -> dict[str, Any]:
    fields = [tuple((name, json.dumps(value).encode()) for name, value in event.items()) for event in events]
    return merged(fields, growing=growing)


def call(index: int, arguments: str, **fields: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, **fields, "function": {"arguments": arguments}}]}


def test_calls_grow_by_their_index() -> None:
    first = {"index": 0, "id": "a", "type": "function", "function": {"name": "look", "arguments": ""}}
    events = (
        {"tool_calls": [first]},
        call(0, '{"x'),
        call(1, "{", id="b", type="function"),
        call(0, '": 1}'),
        call(1, "}"),
    )
    whole = of(*events)
    assert whole == {
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}},
            {"id": "b", "type": "function", "function": {"arguments": "{}"}},
        ]
    }
    theirs: dict[object, object] = {}
    for event in events:
        theirs = accumulate_delta(theirs, json.loads(json.dumps(event)))
    for entry in theirs["tool_calls"]:  # type: ignore[union-attr]
        entry.pop("index")
    assert whole == theirs


def test_strings_grow_and_unnumbered_lists_get_longer() -> None:
    assert of({"reasoning": "Let "}, {"reasoning": None}, {"reasoning": "me"}) == {"reasoning": "Let me"}
    one, two = {"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -0.2}
    assert of({"logprobs": {"content": [one], "refusal": None}}, {"logprobs": {"content": [two]}}) == {
        "logprobs": {"content": [one, two], "refusal": None}
    }


def test_outside_of_deltas_strings_come_whole() -> None:
    assert of({"fingerprint": "x"}, {"fingerprint": "x"}, growing=False) == {"fingerprint": "x"}


def test_other_values_are_those_of_the_last_event() -> None:
    assert of({"score": 1, "id": "a"}, {"score": 2, "id": "a"}) == {"score": 2, "id": "a"}
    assert of({"strange": "text"}, {"strange": [1]}) == {"strange": [1]}
    assert of() == {}


@pytest.mark.parametrize("value", [b'{"a":' * 450 + b"1" + b"}" * 450, rb'"\q"', b"1e999"])
def test_a_value_that_cannot_be_put_together_is_the_upstreams_fault(value: bytes) -> None:
    with pytest.raises(EngineError) as caught:
        merged([(("x", value),), (("x", value),)], growing=True)
    assert caught.value.code == "upstream_protocol"
