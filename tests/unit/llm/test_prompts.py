from __future__ import annotations

from typing import Any

import pytest
from PIL import Image

from opsin.core.errors import InvalidRequest, MediaError, UnsupportedParameter
from opsin.llm.prompts import chat_request, read_prompt
from opsin.llm.sampling import SamplingParams
from opsin.media.config import MediaConfig
from opsin.media.loader import MediaLoader
from opsin.protocol.request import to_conversation

LOADER = MediaLoader(MediaConfig())
IMAGE = Image.new("RGB", (4, 4), "red")
PNG = "data:image/png;base64,AAAA"


@pytest.mark.parametrize(
    ("prompt", "text", "count"),
    [
        ("What?", "What?", 0),
        ({"prompt": "What?"}, "What?", 0),
        ({"prompt_token_ids": [1, 2]}, (1, 2), 0),
        ({"prompt": "What?", "multi_modal_data": None}, "What?", 0),
        ({"prompt": "What?", "multi_modal_data": {}}, "What?", 0),
        ({"prompt": "What?", "multi_modal_data": {"image": IMAGE}}, "What?", 1),
        ({"prompt": "What?", "multi_modal_data": {"image": [IMAGE, PNG]}}, "What?", 2),
    ],
)
def test_forms_of_a_prompt(prompt: Any, text: object, count: int) -> None:
    read = read_prompt(prompt)
    assert (read.text, len(read.pictures)) == (text, count)


def test_pictures_get_their_place_and_the_sampling_goes_along() -> None:
    read = read_prompt({"prompt": "What?", "multi_modal_data": {"image": [IMAGE, PNG]}})
    request = read.to_request(SamplingParams(seed=4), LOADER)
    assert [ref.param for ref in request.prompt.pictures] == ["multi_modal_data.image.0", "multi_modal_data.image.1"]
    assert request.prompt.pictures[1].url == PNG
    assert request.sampling.seed == 4


@pytest.mark.parametrize(
    ("prompt", "error", "said"),
    [
        (3, InvalidRequest, "a string or a dictionary, not int"),
        ({}, InvalidRequest, "either 'prompt'"),
        ({"prompt": 3}, InvalidRequest, "either 'prompt'"),
        ({"prompt": "a", "prompt_token_ids": [1]}, InvalidRequest, "either 'prompt'"),
        ({"prompt_token_ids": [1.5]}, InvalidRequest, "a list of integers"),
        ({"prompt_token_ids": "ab"}, InvalidRequest, "a list of integers"),
        ({"prompt": "a", "mm_processor_kwargs": {}}, UnsupportedParameter, "'mm_processor_kwargs' is no key"),
        ({"prompt": "a", "multi_modal_data": IMAGE}, InvalidRequest, "a dictionary with the key 'image'"),
        ({"prompt": "a", "multi_modal_data": {"video": []}}, UnsupportedParameter, "'video' is not supported"),
    ],
)
def test_wrong_forms_are_told(prompt: Any, error: type[InvalidRequest], said: str) -> None:
    with pytest.raises(error, match=said):
        read_prompt(prompt)


def test_messages_are_openais_and_images_may_be_objects() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "image_pil", "image_pil": IMAGE, "detail": "high"},
                {"type": "text", "text": "And"},
                {"type": "image_url", "image_url": {"url": PNG}},
            ],
        },
    ]
    request = chat_request(messages, SamplingParams(max_tokens=3, temperature=0.5), LOADER)
    assert (request.output_tokens, request.temperature) == (3, 0.5)
    first, second = to_conversation(request).media()
    assert first.url.startswith("data:image/png;base64,")
    assert (first.detail, second.url) == ("high", PNG)
    assert messages[1]["content"][0]["image_pil"] is IMAGE  # type: ignore[index]


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "messages"),
        ("hello", "messages.0"),
        ([{"role": "user", "content": b"bytes"}], "no JSON"),
        ([{"role": "robot", "content": "hello"}], "messages.0.role"),
        ([{"role": "user", "content": [{"type": "image_pil", "image_pil": 3}]}], "got int"),
        ([{"role": "user", "content": [{"type": "image_pil"}]}], "image_pil"),
        ([{"role": "user", "content": ["text"]}], "messages.0.content.0"),
    ],
)
def test_wrong_messages_are_told(messages: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        chat_request(messages, SamplingParams(), LOADER)


def test_a_picture_has_its_place_in_the_error() -> None:
    with pytest.raises(MediaError) as caught:
        chat_request([{"role": "user", "content": [{"type": "image_pil", "image_pil": 3}]}], SamplingParams(), LOADER)
    assert caught.value.param == "messages.0.content.0.image_pil"
