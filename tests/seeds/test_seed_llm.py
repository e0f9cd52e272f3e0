"""The third seed's Python code, changed only in the model and what belongs to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from opsin import LLM, SamplingParams
from opsin.core.errors import ConfigError
from opsin.demo.examples import path

image_data = Image.open(path("red_circle"))


@pytest.fixture(scope="module")
def outputs() -> Iterator[Any]:
    # from vllm import LLM, SamplingParams
    # 멀티모달 모델 초기화
    llm = LLM(
        model="demo",
        tensor_parallel_size=1,  # the local engine runs on one device; 4 is refused, see below
        gpu_memory_utilization=0.9,
        max_model_len=8192,  # as many as the demo model has positions for
        trust_remote_code=True,
    )
    # 이미지 + 텍스트 처리
    sampling_params = SamplingParams(
        temperature=0.7,
        max_tokens=2048,
    )
    outputs = llm.generate(
        [
            {
                "prompt": "Describe this image in detail:",
                "multi_modal_data": {"image": image_data},
            }
        ],
        sampling_params=sampling_params,
    )
    yield outputs
    llm.close()


def test_third_seed_describes_the_image(outputs: Any) -> None:
    (output,) = outputs
    assert "circle" in output.outputs[0].text
    assert output.usage.image_tokens == 80


def test_third_seed_as_it_stands_says_what_to_do_instead() -> None:
    with pytest.raises(ConfigError) as caught:
        LLM(
            model="Qwen/Qwen2.5-VL-72B-Instruct",
            tensor_parallel_size=4,  # 4개 GPU에 분산
            gpu_memory_utilization=0.9,
            max_model_len=32768,
            trust_remote_code=True,
        )
    assert "4" in caught.value.message
    assert "the local engine runs on one device; for several GPUs let opsin start vLLM" in caught.value.message
