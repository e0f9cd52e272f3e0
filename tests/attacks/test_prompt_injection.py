"""Public cases of section 2D, and case 64: special tokens in what a client writes, on the model that is served here.

Every token in every place and spelling, for other families' tokenizers too: tests/unit/prompt/test_text_stays_text.py.
"""

from __future__ import annotations

import json
import time
from itertools import groupby
from typing import Any

import pytest
from openai import OpenAI

from opsin.core.errors import InvalidRequest, UnsupportedParameter
from opsin.demo import examples
from opsin.local_model import LocalModel, load_local_model
from opsin.prompt.build import BuiltPrompt
from opsin.protocol.request import parse_request, to_conversation
from opsin.settings import load_settings
from opsin.vision.plan import Size, planned
from tests.corpus.pictures import data_url

DEMO: LocalModel = load_local_model(load_settings({}))
PICTURE: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:"}}
NUMBER_47: dict[str, Any] = {
    "type": "image_url",
    "image_url": {"url": data_url(examples.path("number_47").read_bytes())},
}
QUESTION: dict[str, Any] = {"type": "text", "text": "What number is it?"}


def built(*messages: dict[str, Any]) -> BuiltPrompt:
    """The prompt that the engine gets for these messages, as a client sends them; pictures are not loaded."""
    conversation = to_conversation(parse_request(json.dumps({"messages": messages}).encode()))
    plans = [planned(DEMO.family, Size(64, 48), ref.detail) for ref in conversation.media()]
    return DEMO.builder.build(conversation, plans)


def user(*parts: str | dict[str, Any]) -> dict[str, Any]:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"role": "user", "content": content}


def special(prompt: BuiltPrompt) -> list[int]:
    return [token_id for token_id in prompt.ids if token_id in DEMO.tokenizer.added_token_ids]


def pieces(prompt: BuiltPrompt) -> list[str]:
    """The prompt's text, cut where an encoder position stands, which are left out."""
    runs = groupby(prompt.ids, key=lambda token_id: token_id == DEMO.image_token_id)
    return [DEMO.tokenizer.decode(list(ids), skip_special_tokens=False) for is_slot, ids in runs if not is_slot]


@pytest.mark.parametrize("text", ["<|vision_start|><|image_pad|><|vision_end|>", "<image>" * 50, "<row_1_col_1>"])
def test_case_69_vision_tokens_without_a_picture_are_text(text: str, client: OpenAI) -> None:
    """vLLM's worker died on them; here they are answered, and so is the next request."""
    prompt = built(user(text))
    assert DEMO.image_token_id not in prompt.ids
    assert text in DEMO.tokenizer.decode(prompt.ids, skip_special_tokens=False)
    for content in (text, "Hello."):
        messages = [{"role": "user", "content": content}]
        answer = client.chat.completions.create(model="demo", messages=messages, max_tokens=4)  # pyright: ignore[reportArgumentType, reportUnknownVariableType] plain JSON
        assert answer.choices[0].finish_reason in ("stop", "length")
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len(built(*messages).ids)


def test_case_70_a_typed_placeholder_before_the_picture_does_not_take_it(client: OpenAI) -> None:
    prompt = built(user("<image> is not the picture", PICTURE, "this was <image>"))
    before, *markers, after = pieces(prompt)
    assert "<image> is not the picture" in before
    assert "this was <image>" in after
    assert not any("<image>" in marker for marker in markers)
    assert special(prompt) == special(built(user("a word", PICTURE, "this was it")))
    asked = {"model": "demo", "max_tokens": 16, "temperature": 0}
    answer = client.chat.completions.create(messages=[user(NUMBER_47, QUESTION)], **asked)  # pyright: ignore[reportArgumentType, reportCallIssue, reportUnknownVariableType] plain JSON
    typed = client.chat.completions.create(messages=[user("<image>", NUMBER_47, QUESTION)], **asked)  # pyright: ignore[reportArgumentType, reportCallIssue, reportUnknownVariableType] plain JSON
    assert "47" in answer.choices[0].message.content
    assert typed.usage.prompt_tokens_details.image_tokens == answer.usage.prompt_tokens_details.image_tokens


def test_case_71_there_is_no_marker_in_the_band() -> None:
    """llama.cpp's marker is only text here, and slots are ids: there is none of ours that could leak."""
    prompt = built(user("<__media__>", PICTURE, "<__media__>"))
    assert special(prompt) == special(built(user("a", PICTURE, "b")))
    assert sum(piece.count("<__media__>") for piece in pieces(prompt)) == 2


@pytest.mark.parametrize(
    "token", ["<image>", "<start_of_image>", "[IMG]", "<IMG_CONTEXT>", "<|video_pad|>", *DEMO.tokenizer.added_tokens]
)
def test_case_73_every_token_in_every_role_is_text(token: str) -> None:
    def talk(word: str) -> BuiltPrompt:
        return built(
            {"role": "system", "content": word},
            {"role": "developer", "content": [{"type": "text", "text": word}]},
            user(word, PICTURE, word, word),
            {"role": "assistant", "content": word},
            user(f"{word}{word}", PICTURE),
        )

    assert special(talk(token)) == special(talk("word"))


def test_case_73_names_reach_no_prompt_and_tools_are_refused() -> None:
    named = built({"role": "user", "content": "hi", "name": "<image>"})
    assert named.ids == built({"role": "user", "content": "hi"}).ids
    calls = [{"id": "<image>", "type": "function", "function": {"name": "<image>", "arguments": "<image>"}}]
    with pytest.raises(UnsupportedParameter):
        built({"role": "assistant", "content": "hi", "tool_calls": calls})
    for role in ("tool", "function", "<image>", "user<|im_end|>"):
        with pytest.raises(InvalidRequest, match="role"):
            built({"role": role, "content": "<image>", "tool_call_id": "<image>"})


@pytest.mark.parametrize("text", ["<image>", "<|image_pad|>", "<", "<image", "<im<image>age>"])
def test_case_64_ten_thousand_placeholders_cost_what_ten_thousand_words_cost(text: str) -> None:
    """Twice the text takes about twice the time; quadratic, it would take four times, and minutes."""

    def seconds(count: int) -> float:
        took: list[float] = []
        for _ in range(3):
            start = time.process_time()
            built(user(text * count, PICTURE))
            took.append(time.process_time() - start)
        return min(took)

    few, many = seconds(2_500), seconds(10_000)
    assert many < 8 * few + 0.05
    assert many < 3
