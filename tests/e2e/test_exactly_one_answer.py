"""Answers of the real server that are easily wrong in detail: limits told in numbers, and text cut at token borders."""

from __future__ import annotations

import json
import re
from typing import Any

import aiohttp
import pytest
from openai import OpenAI

from opsin.demo.scenes import random_objects
from opsin.demo.tasks import held_out
from opsin.demo.wire import to_openai
from opsin.testing.chat_client import Reply, post
from tests.e2e.asking import about, complete, fresh_rng

MAX_MODEL_LEN = 8192
"""Of the demo model."""


async def ask(url: str, messages: list[dict[str, Any]], **fields: Any) -> Reply:
    async with aiohttp.ClientSession() as http:
        body = {"messages": messages, "temperature": 0, "max_tokens": 96, **fields}
        return await post(http, url, json.dumps(body).encode())


@pytest.mark.parametrize("detail", ["low", "high"])
async def test_a_picture_that_does_not_fit_is_told_what_it_takes_and_what_is_left(
    client: OpenAI, demo_url: str, detail: str
) -> None:
    messages = about([random_objects(fresh_rng())], "What colour is it?", detail=detail)
    usage = complete(client, messages, max_tokens=1).usage
    image_tokens = usage.prompt_tokens_details.image_tokens
    # Every token that is left may be asked for, and not one more.
    room = MAX_MODEL_LEN - usage.prompt_tokens
    assert (await ask(demo_url, messages, max_tokens=room)).status == 200
    refused = await ask(demo_url, messages, max_tokens=room + 1)
    assert (refused.status, refused.code) == (400, "context_length_exceeded")
    takes, left = numbers(refused.message)
    assert (takes - left, takes > image_tokens) == (1, True)  # its markers too
    assert "max_model_len" in refused.message


async def test_what_cannot_fit_anyhow_is_told_the_same_way_before_anything_is_decoded(demo_url: str) -> None:
    messages = about([random_objects(fresh_rng())], "word " * 40_000, detail="high")
    refused = await ask(demo_url, messages, max_tokens=7)
    assert (refused.status, refused.code) == (400, "context_length_exceeded")
    text_tokens, *rest = numbers(refused.message)
    assert "at least" in refused.message
    assert rest == [7, MAX_MODEL_LEN]
    assert MAX_MODEL_LEN < text_tokens <= 40_000 * 5


def numbers(message: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", message)]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_across_tokens_ends_the_answer_and_is_not_in_it(demo_url: str, stream: bool) -> None:
    messages = to_openai(held_out(fresh_rng(), "caption", "en"))
    whole = await ask(demo_url, messages, stream=True)
    # From inside the second token into the third one.
    second, third = whole.deltas[1], whole.deltas[2]
    stop = second[-1:] + third[:1]
    stopped = await ask(demo_url, messages, stream=stream, stop=[stop])
    assert stopped.text == whole.text[: whole.text.index(stop)]


async def test_korean_comes_in_whole_characters(demo_url: str) -> None:
    """Most syllables are several tokens of the demo model's."""
    rng = fresh_rng()
    for task in ("caption", "colour", "shape"):
        messages = to_openai(held_out(rng, task, "ko"))
        whole, streamed = await ask(demo_url, messages), await ask(demo_url, messages, stream=True)
        assert streamed.text == whole.text
        assert all(0xAC00 <= ord(character) <= 0xD7A3 or character in " .0123456789" for character in whole.text)
        # Cut anywhere, also inside a syllable.
        for max_tokens in range(1, 6):
            cut = await ask(demo_url, messages, stream=True, max_tokens=max_tokens)
            assert "\ufffd" not in cut.text
            assert whole.text.startswith(cut.text)
