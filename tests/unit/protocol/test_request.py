from __future__ import annotations

import json

import pytest

from opsin.core.conversation import Detail, MediaRef, TextPart
from opsin.core.errors import InvalidRequest
from opsin.protocol.request import parse_request, to_conversation
from tests.corpus.bodies import content_body, text_body


def test_parts_keep_their_order() -> None:
    content = [
        {"type": "text", "text": "Image 1:"},
        {"type": "image_url", "image_url": {"url": "data:a", "detail": "high"}},
        {"type": "image_url", "image_url": "data:b"},
        {"type": "text", "text": "What changed?"},
    ]
    conversation = to_conversation(parse_request(content_body(content)))
    assert conversation.messages[0].parts == (
        TextPart("Image 1:"),
        MediaRef("data:a", Detail.HIGH, "messages.0.content.1.image_url"),
        MediaRef("data:b", Detail.AUTO, "messages.0.content.2.image_url"),
        TextPart("What changed?"),
    )


def test_developer_is_a_system_message() -> None:
    assert to_conversation(parse_request(content_body("be brief", role="developer"))).messages[0].role == "system"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (text_body(temperature=3.0), "temperature"),
        (text_body(messages=[{"role": "user", "content": 5}]), "messages.0.content"),
        (text_body(messages=[{"role": "robot", "content": "x"}]), "messages.0.role"),
        (content_body([{"type": "text", "text": "x"}, {"type": "text"}]), "messages.0.content.1.text"),
        (content_body([{"type": "image_url", "image_url": {"detail": "low"}}]), "messages.0.content.0.image_url.url"),
        (content_body([{"type": "video_url"}]), "messages.0.content.0"),
        (text_body(stop=[""]), "stop"),
    ],
)
def test_an_error_names_the_field_and_never_quotes_the_value(body: bytes, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(body)
    assert caught.value.param == param
    assert "robot" not in caught.value.message


def test_max_completion_tokens_wins_over_its_older_name() -> None:
    assert parse_request(text_body(max_completion_tokens=2)).output_tokens == 2


def test_a_megabyte_data_url_parses_to_the_same_string() -> None:
    url = "data:image/png;base64," + "A" * 2**20
    body = json.dumps({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]})
    (ref,) = to_conversation(parse_request(body.encode())).media()
    assert ref.url == url
