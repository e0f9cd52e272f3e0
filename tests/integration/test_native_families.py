"""Every family through the gateway: our ids are those of the model's own processor, our answer that of ``generate``."""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from opsin.engine.local import engine
from tests.integration.gateways import gateway
from tests.native_checkpoints import CASES, Case, Checkpoint, build
from tests.tiny import generated
from tests.worker_here import WorkerHere

MAX_TOKENS = 8
SIZES = ((45, 33), (70, 21))
"""Odd, of another shape, and no multiples of any patch."""


def _picture(size: tuple[int, int]) -> Image.Image:
    return Image.frombytes("RGB", size, random.Random(size[0]).randbytes(3 * size[0] * size[1]))


def _url(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _asked(pictures: Sequence[Image.Image]) -> list[dict[str, Any]]:
    parts = [{"type": "image_url", "image_url": {"url": _url(picture)}} for picture in pictures]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]}]


def _by_processor(case: Case, checkpoint: Checkpoint, pictures: Sequence[Image.Image]) -> dict[str, torch.Tensor]:
    parts = [{"type": "image"} for _ in pictures]
    messages = [{"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]}]
    text = checkpoint.processor.apply_chat_template(messages, add_generation_prompt=True)
    images = [list(pictures)] if case.counts_pictures else list(pictures)
    return dict(checkpoint.processor(images=images, text=text, return_tensors="pt"))


@pytest.mark.parametrize("name", CASES)
async def test_ids_and_answers_are_those_of_the_models_own_processor(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "WorkerProcess", WorkerHere)
    torch.set_num_threads(1)
    checkpoint = build(CASES[name], tmp_path)
    local = {"device": "cpu", "dtype": "float32", "num_threads": 1}
    async with gateway(engine="local", model=str(tmp_path), local=local, media={"render_workers": 1}) as served:
        for num_pictures in (1, 2, 2):  # the last ones are known
            pictures = [_picture(size) for size in SIZES[:num_pictures]]
            WorkerHere.tokens.clear()
            status, answer = await served.chat(messages=_asked(pictures), max_tokens=MAX_TOKENS, temperature=0)
            assert status == 200, answer
            inputs = _by_processor(CASES[name], checkpoint, pictures)
            ids = inputs.pop("input_ids")
            del inputs["attention_mask"]
            assert list(WorkerHere.submits[-1].prompt_ids) == ids[0].tolist()
            expected, sure = generated(checkpoint.model, ids, MAX_TOKENS, inputs)
            expected = [token for token in expected[:sure] if token != checkpoint.model.generation_config.eos_token_id]
            assert WorkerHere.tokens[: len(expected)] == expected
            assert sure > MAX_TOKENS // 2, "the model hardly decides anything"
            assert answer["usage"]["prompt_tokens"] == ids.shape[1]
