from __future__ import annotations

import json
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from openai.types.chat import (
    ChatCompletionAssistantMessageParam,
    ChatCompletionContentPartImageParam,
    ChatCompletionContentPartParam,
    ChatCompletionContentPartTextParam,
    ChatCompletionDeveloperMessageParam,
    ChatCompletionStreamOptionsParam,
    ChatCompletionSystemMessageParam,
    ChatCompletionUserMessageParam,
)
from openai.types.chat.chat_completion_assistant_message_param import ContentArrayOfContentPart
from openai.types.chat.chat_completion_content_part_image_param import ImageURL
from openai.types.chat.chat_completion_content_part_param import FileFile
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)

from opsin.core.errors import InvalidRequest, UnsupportedParameter
from opsin.protocol.fields import PART_TYPES, RULES, Fate, FieldRule, Place
from opsin.protocol.request import (
    ChatCompletionRequest,
    ChatMessage,
    FileContent,
    ImageContent,
    ImageUrl,
    InputImageContent,
    ProcessorFields,
    ProcessorSize,
    StreamOptions,
    TextContent,
    UploadedFile,
    parse_request,
)
from tests.corpus.bodies import content_body

MODELS = {
    Place.REQUEST: (ChatCompletionRequest,),
    Place.STREAM_OPTIONS: (StreamOptions,),
    Place.MESSAGE: (ChatMessage,),
    Place.PART: (TextContent, ImageContent, InputImageContent, FileContent),
    Place.FILE: (UploadedFile,),
    Place.IMAGE_URL: (ImageUrl,),
    Place.PROCESSOR: (ProcessorFields,),
    Place.SIZE: (ProcessorSize,),
}
OPENAI = {
    Place.REQUEST: (CompletionCreateParamsNonStreaming, CompletionCreateParamsStreaming),
    Place.STREAM_OPTIONS: (ChatCompletionStreamOptionsParam,),
    Place.MESSAGE: (
        ChatCompletionSystemMessageParam,
        ChatCompletionDeveloperMessageParam,
        ChatCompletionUserMessageParam,
        ChatCompletionAssistantMessageParam,
    ),
    Place.PART: (ChatCompletionContentPartTextParam, ChatCompletionContentPartImageParam),
    Place.IMAGE_URL: (ImageURL,),
    Place.FILE: (FileFile,),
    Place.PROCESSOR: (),
    Place.SIZE: (),
}
# vllm/entrypoints/openai/chat_completion/protocol.py at commit 002032ee, beyond OpenAI's; then older ones of vLLM.
VLLM = """
thinking_token_budget include_reasoning use_beam_search top_k min_p repetition_penalty watermarking length_penalty
stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens
truncate_prompt_tokens truncation_side prompt_logprobs logprob_token_ids allowed_token_ids bad_words echo
add_generation_prompt continue_final_message add_special_tokens documents chat_template chat_template_kwargs
media_io_kwargs mm_processor_kwargs structured_outputs priority request_id session_id return_tokens_as_token_ids
return_token_ids routed_experts_prompt_start return_token_offsets return_prompt_text return_mm_kwargs cache_salt
kv_transfer_params ec_transfer_params vllm_xargs repetition_detection stream_interval

best_of early_stopping logits_processors structural_tag guided_json guided_regex guided_choice guided_grammar
guided_decoding_backend guided_whitespace_pattern
"""


def _rules(fate: Fate) -> list[FieldRule]:
    return [rule for rule in RULES if rule.fate is fate]


def _names(place: Place) -> set[str]:
    return {rule.name for rule in RULES if rule.place is place}


def _path(rule: FieldRule) -> str:
    return rule.path


def _body(place: Place, fields: dict[str, Any]) -> bytes:
    """A good request with ``fields`` on top of one object of it."""

    def at(here: Place) -> dict[str, Any]:
        return fields if here is place else {}

    image = {"url": "data:image/png;base64,AAAA", **at(Place.IMAGE_URL)}
    file = {"file_id": "file-1", **at(Place.FILE)}
    parts = [
        {"type": "text", "text": "Hello."},
        {"type": "image_url", "image_url": image, **at(Place.PART)},
        {"type": "file", "file": file},
    ]
    message = {"role": "user", "content": parts, **at(Place.MESSAGE)}
    options = {"include_usage": True, **at(Place.STREAM_OPTIONS)}
    kwargs = {"size": {"longest_edge": 4096, **at(Place.SIZE)}, **at(Place.PROCESSOR)}
    request = {
        "messages": [message],
        "stream": True,
        "stream_options": options,
        "mm_processor_kwargs": kwargs,
        **at(Place.REQUEST),
    }
    return json.dumps(request).encode()


def _param(rule: FieldRule) -> str:
    part = {Place.PART: "1", Place.IMAGE_URL: "1", Place.FILE: "2"}.get(rule.place, "")
    return rule.path.replace("content[]", f"content.{part}").replace("messages[]", "messages.0")


def test_a_field_has_one_fate() -> None:
    paths = [rule.path for rule in RULES]
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize("place", Place)
def test_accepted_are_the_fields_of_the_models(place: Place) -> None:
    fields = {name for model in MODELS[place] for name in model.model_fields}
    assert {rule.name for rule in _rules(Fate.ACCEPTED) if rule.place is place} == fields


@pytest.mark.parametrize("place", Place)
def test_every_field_of_openai_has_a_fate(place: Place) -> None:
    assert {name for params in OPENAI[place] for name in typing.get_type_hints(params)} - _names(place) == set()


def test_every_type_of_part_of_openai_has_a_fate() -> None:
    assert set(_literal_types(ChatCompletionContentPartParam, ContentArrayOfContentPart)) == {
        *("text", "image_url", "input_audio", "file", "refusal")
    }
    assert {"input_audio", "refusal"} <= PART_TYPES.keys()


def _literal_types(*unions: Any) -> Iterator[str]:
    for union in unions:
        for params in typing.get_args(union):
            yield from typing.get_args(typing.get_type_hints(params)["type"])


def test_every_extension_of_vllm_has_a_fate() -> None:
    assert set(VLLM.split()) - _names(Place.REQUEST) == set()


@pytest.mark.parametrize("rule", _rules(Fate.REFUSED), ids=_path)
def test_a_refused_field_is_named_with_what_to_do_instead(rule: FieldRule) -> None:
    for value in ("anything", {"any": "thing"}, 17):
        with pytest.raises(UnsupportedParameter) as caught:
            parse_request(_body(rule.place, {rule.name: value}))
        assert caught.value.param == _param(rule)
        assert f"'{_param(rule)}'" in caught.value.message
        assert rule.note in caught.value.message
        assert "any" not in caught.value.message.replace(rule.note, "")


@pytest.mark.parametrize("rule", _rules(Fate.REFUSED), ids=_path)
def test_a_refused_field_that_asks_for_nothing_passes(rule: FieldRule) -> None:
    expected = parse_request(_body(rule.place, {}))
    for value in (None, *rule.neutral):
        assert parse_request(_body(rule.place, {rule.name: value})) == expected


@pytest.mark.parametrize("rule", _rules(Fate.IGNORED), ids=_path)
def test_an_ignored_field_changes_nothing(rule: FieldRule) -> None:
    for value in ("anything", {"any": "thing"}, 17, True, None):
        assert parse_request(_body(rule.place, {rule.name: value})) == parse_request(_body(rule.place, {}))


@pytest.mark.parametrize("place", [place for place in Place if not place.is_closed])
def test_a_field_without_a_rule_is_ignored(place: Place) -> None:
    assert parse_request(_body(place, {"field_of_tomorrow": [1]})) == parse_request(_body(place, {}))


@pytest.mark.parametrize("place", [place for place in Place if place.is_closed])
def test_where_it_would_change_a_processor_it_is_refused_by_name(place: Place) -> None:
    for name in ("field_of_tomorrow", "x" * 1000):
        with pytest.raises(UnsupportedParameter) as caught:
            parse_request(_body(place, {name: [1]}))
        assert caught.value.param == f"{place}{name[:40]}"
        assert len(caught.value.message) < 200


@pytest.mark.parametrize("name", PART_TYPES)
def test_a_type_of_part_that_others_know_is_named_with_what_to_do_instead(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(content_body([{"type": "text", "text": "x"}, {"type": name, name: "anything"}]))
    assert caught.value.code == "unsupported_content_part"
    assert caught.value.param == "messages.0.content.1"
    assert f"'{name}'" in caught.value.message
    assert PART_TYPES[name].note in caught.value.message


@pytest.mark.parametrize("part", [{"type": "secret"}, {"type": ["secret"]}, {"secret": 1}, "secret"])
def test_a_type_of_part_that_nobody_knows_is_not_quoted(part: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(content_body([part]))
    assert caught.value.code == "unsupported_content_part"
    assert "secret" not in caught.value.message
    assert "'text', 'image_url', 'input_image' or 'file'" in caught.value.message
