"""The cap on pictures holds by the family's own arithmetic."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsin.engine.managed.pixels import in_its_words, max_pixels_within
from opsin.models.facts import facts_of
from opsin.vision.config import ProcessorKwargs
from opsin.vision.idefics3 import Idefics3Family
from opsin.vision.plan import Family, Size
from opsin.vision.registry import family_for

QWEN = "Qwen/Qwen2.5-VL-7B-Instruct"
SMOLVLM = "HuggingFaceTB/SmolVLM-256M-Instruct"
sides = st.integers(60, 4000)


def family(model: str) -> Family:
    facts = facts_of(model)
    assert facts is not None
    return family_for(facts.vision)


@pytest.mark.parametrize("model", [QWEN, "Qwen/Qwen3-VL-8B-Instruct"])
@given(sides, sides, st.integers(256, 8192))
def test_no_picture_of_qwen_costs_more(model: str, width: int, height: int, max_tokens: int) -> None:
    whole = family(model)
    max_pixels = max_pixels_within(whole, max_tokens)
    assert max_pixels is not None
    assert whole.with_max_pixels(max_pixels).count(Size(width, height)).image_tokens <= max_tokens
    assert in_its_words(whole, ProcessorKwargs(max_pixels=max_pixels)) == {"max_pixels": max_pixels}


@given(sides, sides, st.integers(128, 1024))
def test_no_picture_of_smolvlm_costs_more(width: int, height: int, max_tokens: int) -> None:
    whole = family(SMOLVLM)
    assert isinstance(whole, Idefics3Family)
    max_pixels = max_pixels_within(whole, max_tokens)
    assert max_pixels is not None
    told = in_its_words(whole, ProcessorKwargs(max_pixels=max_pixels))
    edge = math.isqrt(max_pixels)
    assert told == {"size": {"longest_edge": edge}}
    assert replace(whole, longest_edge=edge).count(Size(width, height)).image_tokens <= max_tokens


def test_a_cap_is_never_above_the_models_own() -> None:
    for model in (QWEN, SMOLVLM):
        assert max_pixels_within(family(model), 10**6) is None
