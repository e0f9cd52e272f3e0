"""What a request holds for an engine that reads more than opsin."""

from __future__ import annotations

import json
from typing import Any

import pytest

from opsin.core.conversation import Message, TextPart
from opsin.core.errors import InvalidRequest, UnsupportedParameter
from opsin.protocol.fields import RULES, Fate, FieldRule, Place
from opsin.protocol.request import parse_request, to_conversation


def body(*messages: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({"messages": messages or [{"role": "user", "content": "hi"}], **fields}).encode()


def test_fields_go_on_as_the_bytes_that_came() -> None:
    conversation = to_conversation(
        parse_request(
            b'{"messages":[{"role":"user","content":"hi","name":"b\\u006fb"}],"tools":[ {"x": 1e400} ],"temperature":0,'
            b'"field_of_tomorrow":12345678901234567890123,"response_format":null}',
            relay=True,
        )
    )
    assert conversation.messages == (Message("user", (TextPart("hi"),), (("name", b'"b\\u006fb"'),)),)
    assert conversation.fields == (
        ("tools", b'[ {"x": 1e400} ]'),
        ("field_of_tomorrow", b"12345678901234567890123"),
        ("response_format", b"null"),
    )


def test_the_result_of_a_tool_is_a_message() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    result = {"role": "tool", "tool_call_id": "1", "content": "5"}
    _, asked, answered = to_conversation(
        parse_request(body({"role": "user", "content": "hi"}, call, result), relay=True)
    ).messages
    assert asked == Message("assistant", (), (("tool_calls", b'[{"id": "1"}]'),))
    assert answered == Message("tool", (TextPart("5"),), (("tool_call_id", b'"1"'),))
    with pytest.raises(InvalidRequest, match="must be 'system', 'developer', 'user' or 'assistant'"):
        parse_request(body(result))


def staying(fate: Fate) -> list[FieldRule]:
    return [rule for rule in RULES if rule.stays and rule.fate is fate and rule.place in (Place.REQUEST, Place.MESSAGE)]


@pytest.mark.parametrize("rule", staying(Fate.REFUSED), ids=lambda rule: rule.path)
def test_identity_limits_and_code_are_refused_for_every_engine(rule: FieldRule) -> None:
    fields = {rule.name: "anything"}
    with pytest.raises(UnsupportedParameter):
        parse_request(
            body(**fields) if rule.place is Place.REQUEST else body({"role": "user", "content": "hi", **fields}),
            relay=True,
        )


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES if rule.stays and rule.place is Place.REQUEST], ids=lambda rule: rule.path
)
def test_what_stays_is_not_sent_even_where_it_asks_for_nothing(rule: FieldRule) -> None:
    for value in (None, *rule.neutral) if rule.fate is Fate.REFUSED else ("anything",):
        message = {"role": "user", "content": "hi"}
        fields = {rule.name: value}
        sent = body(**fields) if rule.place is Place.REQUEST else body(message | fields)
        conversation = to_conversation(parse_request(sent, relay=True))
        assert (conversation.fields, conversation.messages[0].fields) == ((), ())


def test_json_for_lenient_parsers_alone_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(b'{"messages":[{"role":"user","content":"hi"}],"x":NaN}', relay=True)
    assert caught.value.code == "invalid_json"
