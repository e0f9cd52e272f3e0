"""``opsin serve DIR`` on random weights in the exact shape of SmolVLM-256M: token counts as the first seed reports."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pybase64
import pytest
from openai import OpenAI
from PIL import Image

from tests.checkpoints import smolvlm_256m
from tests.conftest import client_of, serve


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    folder: Path = smolvlm_256m(tmp_path_factory.mktemp("smolvlm"))
    with serve(str(folder), "--served-model-name", "smolvlm") as url, client_of(url) as client:
        yield client


def _image_tokens(client: OpenAI, pictures: int, detail: str) -> tuple[int, int]:
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize((1024, 1024)).save(buffer, "PNG")
    url = f"data:image/png;base64,{pybase64.b64encode(buffer.getvalue()).decode()}"
    picture = {"type": "image_url", "image_url": {"url": url, "detail": detail}}
    content: Any = [*[picture] * pictures, {"type": "text", "text": "What is it?"}]
    completion = client.chat.completions.create(
        model="smolvlm", messages=[{"role": "user", "content": content}], max_tokens=1
    )
    assert completion.usage is not None
    details: Any = completion.usage.prompt_tokens_details
    return details.image_tokens, completion.usage.prompt_tokens


@pytest.mark.parametrize(("pictures", "detail", "expected"), [(1, "low", 64), (1, "high", 1088), (2, "high", 2176)])
def test_image_tokens_are_the_seeds(client: OpenAI, pictures: int, detail: str, expected: int) -> None:
    image_tokens, prompt_tokens = _image_tokens(client, pictures, detail)
    assert image_tokens == expected
    assert prompt_tokens > expected
