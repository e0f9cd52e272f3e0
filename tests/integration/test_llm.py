"""``LLM`` over the fake engine: what does not need a model."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from opsin import LLM, SamplingParams
from opsin.core.errors import EngineError, MediaTooLarge, UnsupportedParameter

PICTURE = Image.new("RGB", (8, 8), "red")
ABOUT = {"prompt": "What is it?", "multi_modal_data": {"image": PICTURE}}
ANSWER = "This answer comes from the fake engine."


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(engine="fake", media={"render_workers": 1}) as llm:
        yield llm


def test_an_engine_with_a_template_of_its_own_answers_chats(llm: LLM) -> None:
    (generated,) = llm.generate(ABOUT)
    (chatted,) = llm.chat([{"role": "user", "content": [{"type": "image_pil", "image_pil": PICTURE}]}])
    for output in (generated, chatted):
        assert output.outputs[0].text == ANSWER
        assert (output.prompt, output.prompt_token_ids) == (None, None)


@pytest.mark.parametrize("prompt", ["raw text", {"prompt_token_ids": [1], "multi_modal_data": {"image": PICTURE}}])
def test_and_refuses_raw_prompts(llm: LLM, prompt: Any) -> None:
    with pytest.raises(UnsupportedParameter, match="needs the local engine"):
        llm.generate(prompt)


def test_a_photograph_fits_as_pixels_too(llm: LLM) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (2000, 2000, 3), dtype=np.uint8)
    assert pixels.nbytes > 10 * 2**20
    assert llm.generate({"prompt": "What?", "multi_modal_data": {"image": pixels}})
    with pytest.raises(MediaTooLarge):
        llm.generate({"prompt": "What?", "multi_modal_data": {"image": np.zeros((5001, 5000, 3), np.uint8)}})


def test_an_engine_that_fails_is_told() -> None:
    with (
        LLM(engine="fake", fake={"failure": "mid_stream"}, media={"render_workers": 1}) as llm,
        pytest.raises(EngineError) as caught,
    ):
        llm.generate([ABOUT, ABOUT], SamplingParams(temperature=0))
    assert caught.value.__notes__


def test_closing_ends_a_call_in_another_thread() -> None:
    llm = LLM(engine="fake", fake={"ttft_s": 60}, media={"render_workers": 1})
    ended: list[float] = []

    def ask() -> None:
        with pytest.raises(EngineError):
            llm.generate([ABOUT] * 3)
        ended.append(time.monotonic())

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(0.5)
    llm.close()
    asking.join(20)
    assert ended
