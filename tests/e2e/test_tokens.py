"""What ``POST /v1/tokens`` says beforehand is what the engine counts."""

from __future__ import annotations

import random
from typing import Any

import pytest
from openai import OpenAI

from opsin.protocol.response import TokenCount
from tests.corpus.pictures import data_url, encoded, exif_block, scene

REQUESTS = 40
WORDS = ("How", "many", "rings?", "<image>", "", "<|im_end|>", "다섯", "total", "\n\n", "What is it?")


def random_body(rng: random.Random) -> dict[str, Any]:
    """One to four pictures of any shape among texts of any kind."""
    parts = [_picture(rng) for _ in range(rng.randint(1, 4))]
    parts += [{"type": "text", "text": " ".join(rng.choices(WORDS, k=rng.randint(0, 6)))} for _ in range(2)]
    rng.shuffle(parts)
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": 1, "temperature": 0}


def _picture(rng: random.Random) -> dict[str, Any]:
    size = (rng.randint(1, 400), rng.randint(1, 400))
    size = size if max(size) <= 90 * min(size) else (40, 30)
    exif = {"exif": b"Exif\0\0" + exif_block(rng.randint(1, 8))}
    url = data_url(encoded(scene(size=size), "jpeg", **exif), "image/jpeg")
    return {"type": "image_url", "image_url": {"url": url, "detail": rng.choice(("auto", "low", "high"))}}


@pytest.mark.parametrize("seed", range(REQUESTS))
def test_the_price_is_what_is_charged(client: OpenAI, seed: int) -> None:
    body = random_body(random.Random(seed))
    told = client.post("/tokens", body=body, cast_to=dict[str, Any])
    answer = client.post("/chat/completions", body=body, cast_to=dict[str, Any])
    usage = answer["usage"]
    assert told["fits"] is True
    assert told["prompt_tokens"] == usage["prompt_tokens"]
    assert told["image_tokens"] == usage["prompt_tokens_details"]["image_tokens"]
    for before, after in zip(told["images"], answer["opsin"]["images"], strict=True):
        same = ("width", "height", "used_width", "used_height", "tiles", "image_tokens")
        assert [before[name] for name in same] == [after[name] for name in same]
        assert before["exact"] is True


def test_every_field_of_an_answer_is_there(client: OpenAI) -> None:
    told = client.post("/tokens", body=random_body(random.Random(0)), cast_to=dict[str, Any])
    assert set(told) <= set(TokenCount.__struct_fields__)
    assert {"model", "text_tokens", "fits", "images"} <= set(told)
