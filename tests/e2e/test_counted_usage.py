"""Usage, which the engine counts in features, is what the model's own processor makes of every picture."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pybase64
import pytest
from openai import OpenAI
from PIL import Image
from transformers import Idefics3Processor

from opsin.settings import Settings
from tests.checkpoints import NARROW, smolvlm_256m
from tests.conftest import client_of, serve
from tests.e2e.asking import complete, fresh_rng

NUM_REQUESTS = 200
DETAILS = ("auto", "low", "high", "original")


@dataclass(frozen=True, slots=True)
class Shown:
    """A picture that the oracle has counted."""

    url: str
    detail: str
    tiles: int
    image_tokens: int


@pytest.fixture(scope="module", params=["demo", "SmolVLM-256M"])
def counted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OpenAI, Path]]:
    """A server and the folder that it serves. Few weights do for counting."""
    if request.param == "demo":
        yield request.getfixturevalue("client"), Path(Settings().model_location)
        return
    folder = smolvlm_256m(tmp_path_factory.mktemp("narrow"), NARROW)
    with serve(str(folder), "--served-model-name", "demo") as url, client_of(url) as client:
        yield client, folder


def test_usage_is_the_processors_count(counted: tuple[OpenAI, Path]) -> None:
    client, folder = counted
    rng = fresh_rng()
    # Few pictures in many combinations: each is encoded once and found again, and half of the requests find all.
    pool = [_shown(rng, Idefics3Processor.from_pretrained(folder)) for _ in range(24)]
    for _ in range(NUM_REQUESTS):
        shown = rng.choices(pool, k=rng.randint(1, 4))
        content = [{"type": "image_url", "image_url": {"url": one.url, "detail": one.detail}} for one in shown]
        answer = complete(
            client, [{"role": "user", "content": [*content, {"type": "text", "text": "?"}]}], max_tokens=1
        )
        assert answer.usage.prompt_tokens_details.image_tokens == sum(one.image_tokens for one in shown)
        reports = [(report["tiles"], report["image_tokens"]) for report in answer.opsin["images"]]
        assert reports == [(one.tiles, one.image_tokens) for one in shown]


def _shown(rng: random.Random, processor: Any) -> Shown:
    detail = rng.choice(DETAILS)
    picture = Image.new("RGB", (rng.randint(10, 900), rng.randint(10, 900)), (rng.randrange(256), 0, 0))
    inputs = processor.image_processor(picture, do_image_splitting=detail != "low", return_tensors="np")
    tiles = inputs["pixel_values"].shape[1]
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    url = f"data:image/png;base64,{pybase64.b64encode(buffer.getvalue()).decode()}"
    return Shown(url, detail, tiles, tiles * processor.image_seq_len)
