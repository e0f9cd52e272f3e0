"""``mm_processor_kwargs``: they lower what a family may do, and never raise it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsin.core.conversation import Detail, PixelBounds
from opsin.core.errors import ConfigError, InvalidRequest
from opsin.vision.bounds import bounded, configured
from opsin.vision.config import ProcessorKwargs, SizeBounds
from opsin.vision.glm4v import Glm4vFamily
from opsin.vision.idefics3 import Idefics3Family
from opsin.vision.internvl import InternVLFamily
from opsin.vision.llava import LlavaFamily
from opsin.vision.plan import Family, Size
from opsin.vision.qwen_vl import QwenVLFamily

QWEN = QwenVLFamily(min_pixels=3136, max_pixels=1003520)
GLM = Glm4vFamily()
SMOLVLM = Idefics3Family(name="smolvlm", longest_edge=2048, tile_side=512, tokens_per_tile=64)
PIXELS = st.none() | st.integers(1, 2**31 - 1)


@pytest.mark.parametrize(
    ("family", "bounds", "expected"),
    [
        (QWEN, PixelBounds(), QWEN),
        (QWEN, PixelBounds(max_pixels=10**9), QWEN),
        (QWEN, PixelBounds(max_pixels=50176), QwenVLFamily(min_pixels=3136, max_pixels=50176)),
        (QWEN, PixelBounds(longest_edge=50176), QwenVLFamily(min_pixels=3136, max_pixels=50176)),
        (QWEN, PixelBounds(shortest_edge=1568), QwenVLFamily(min_pixels=1568, max_pixels=1003520)),
        (QWEN, PixelBounds(min_pixels=10**9), QWEN),
        (GLM, PixelBounds(longest_edge=100352, shortest_edge=6272), Glm4vFamily(min_pixels=6272, max_pixels=100352)),
        (GLM, PixelBounds(max_pixels=50176), Glm4vFamily(max_pixels=100352)),
        (SMOLVLM, PixelBounds(max_pixels=1024 * 1024), SMOLVLM.with_max_pixels(1024**2)),
        (InternVLFamily(), PixelBounds(max_pixels=448 * 896), InternVLFamily(max_tiles=2)),
    ],
)
def test_by_hand(family: Family, bounds: PixelBounds, expected: Family) -> None:
    assert bounded(family, bounds) == expected


@pytest.mark.parametrize(
    ("family", "bounds", "field", "told"),
    [
        (QWEN, PixelBounds(max_pixels=783), "max_pixels", "is 783; the least of this model is 784"),
        (QWEN, PixelBounds(min_pixels=5000, max_pixels=4000), "min_pixels", "is 5000, which is more than .*4000"),
        (QWEN, PixelBounds(min_pixels=5000, longest_edge=4000), "size", "the same"),
        (SMOLVLM, PixelBounds(longest_edge=1024), "size", "send 'max_pixels'"),
        (SMOLVLM, PixelBounds(min_pixels=1024), "min_pixels", "smolvlm scales pictures to sizes of its own"),
        (SMOLVLM, PixelBounds(max_pixels=512 * 512 - 1), "max_pixels", "the least of this model is 262144"),
        (LlavaFamily(), PixelBounds(max_pixels=10**6), "max_pixels", "one size"),
    ],
)
def test_what_makes_no_sense_is_refused(family: Family, bounds: PixelBounds, field: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told) as refused:
        bounded(family, bounds)
    assert refused.value.param == f"mm_processor_kwargs.{field}"


@given(
    width=st.integers(1, 4096), height=st.integers(1, 4096), low=PIXELS, high=PIXELS, operators=st.integers(784, 10**7)
)
def test_a_request_never_takes_more_than_the_operator_allows(
    width: int, height: int, low: int | None, high: int | None, operators: int
) -> None:
    family = QWEN.with_max_pixels(operators)
    try:
        lowered = bounded(family, PixelBounds(min_pixels=low, max_pixels=high))
        tokens = lowered.count(Size(width, height), Detail.AUTO).image_tokens
    except InvalidRequest:
        return
    assert tokens <= family.count(Size(width, height), Detail.AUTO).image_tokens


def test_an_operators_kwargs() -> None:
    whole = configured(SMOLVLM, ProcessorKwargs(do_image_splitting=False))
    assert whole.count(Size(640, 480)).num_tiles == 1
    assert whole.count(Size(640, 480), Detail.HIGH).num_tiles == 13
    assert configured(QWEN, ProcessorKwargs(size=SizeBounds(longest_edge=50176))).max_pixels == 50176
    assert configured(QWEN, ProcessorKwargs()) == QWEN


@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        (ProcessorKwargs(do_image_splitting=True), "--mm-processor-kwargs: qwen2_vl has no do_image_splitting"),
        (ProcessorKwargs(max_pixels=1), "--mm-processor-kwargs: 'mm_processor_kwargs.max_pixels': is 1"),
    ],
)
def test_an_operator_is_told_at_the_start(kwargs: ProcessorKwargs, told: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(told)}"):
        configured(QWEN, kwargs)
