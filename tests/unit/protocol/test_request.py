from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from opsin.core.conversation import Detail, MediaRef, TextPart
from opsin.core.errors import InvalidRequest
from opsin.protocol.request import ChatCompletionRequest, parse_request, to_conversation
from tests.corpus.bodies import bad_bodies, content_body, text_body


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


@pytest.mark.parametrize(
    "field", ["stream", "min_tokens", "temperature", "presence_penalty", "frequency_penalty", "ignore_eos", "stop"]
)
def test_a_null_is_as_if_absent(field: str) -> None:
    assert parse_request(text_body(**{field: None})) == parse_request(text_body())


def test_a_null_in_a_part_is_as_if_absent() -> None:
    content = [{"type": "image_url", "image_url": {"url": "data:a", "file_id": None, "detail": None}}]
    conversation = to_conversation(parse_request(content_body(content)))
    assert conversation.messages[0].parts == (MediaRef("data:a", Detail.AUTO, "messages.0.content.0.image_url"),)


def test_developer_is_a_system_message() -> None:
    assert to_conversation(parse_request(content_body("be brief", role="developer"))).messages[0].role == "system"


ROLES = "'system', 'developer', 'user' or 'assistant'"


@pytest.mark.parametrize(
    ("body", "param", "complaint"),
    [
        (b"[]", None, "the request must be an object"),
        (b"{}", "messages", "'messages' is missing"),
        (text_body(temperature=3.0), "temperature", "'temperature' must be at most 2"),
        (text_body(repetition_penalty=0), "repetition_penalty", "'repetition_penalty' must be at least 0.01"),
        (text_body(top_p=0), "top_p", "'top_p' must be more than 0"),
        (text_body(max_tokens=10**30), "max_tokens", "'max_tokens' must be at most 2147483647"),
        (text_body(seed=1.5), "seed", "'seed' must be an integer"),
        (text_body(stream="secret"), "stream", "'stream' must be true or false"),
        (text_body(messages=[]), "messages", "'messages' must have at least 1 entries"),
        (
            text_body(messages=[{"role": "user", "content": 5}]),
            "messages.0.content",
            "'messages.0.content' must be a list",
        ),
        (
            text_body(messages=[{"role": "secret", "content": "x"}]),
            "messages.0.role",
            f"'messages.0.role' must be {ROLES}",
        ),
        (content_body([{"type": "text", "text": "x"}, {"type": "text"}]), "messages.0.content.1.text", "is missing"),
        (
            content_body([{"type": "image_url", "image_url": {"detail": "low"}}]),
            "messages.0.content.0.image_url",
            "must have either a URL or a file_id",
        ),
        (content_body([{"type": "video_url"}]), "messages.0.content.0", "a part of type 'video_url' is not supported"),
        (text_body(stop=[""]), "stop", "'stop' must not contain an empty string"),
        (text_body(seed={"secret": "secret"}), "seed", "'seed' must be an integer"),
    ],
)
def test_an_error_names_the_field_and_never_quotes_the_value(body: bytes, param: str | None, complaint: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(body)
    assert caught.value.param == param
    assert complaint in caught.value.message
    assert "secret" not in caught.value.message


def test_every_mistake_of_the_corpus_is_said_in_our_words() -> None:
    for bad in bad_bodies():
        try:
            parse_request(bad.body)
        except InvalidRequest as error:
            assert error.code == "invalid_json" or "is not valid" not in error.message, (bad.name, error.message)


def test_max_completion_tokens_wins_over_its_older_name() -> None:
    assert parse_request(text_body(max_completion_tokens=2)).output_tokens == 2


def test_a_megabyte_data_url_parses_to_the_same_string() -> None:
    url = "data:image/png;base64," + "A" * 2**20
    body = json.dumps({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]})
    (ref,) = to_conversation(parse_request(body.encode())).media()
    assert ref.url == url


@pytest.mark.parametrize("kind", [["text"], {"text": "text"}, 1, None])
def test_a_type_that_is_no_string_is_not_put_into_words(kind: object) -> None:
    """Found by fuzzing: those of a list of 4 MB held up every other request for 0.3 s."""
    body = content_body([{"type": kind, "text": "?"}])
    with pytest.raises(InvalidRequest) as refused:
        parse_request(body)
    assert refused.value.code == "unsupported_content_part"
    with pytest.raises(ValidationError) as invalid:
        ChatCompletionRequest.model_validate_json(body)
    assert invalid.value.errors()[0].get("ctx", {})["tag"] == "<none>"
