"""The cap on pictures holds by the family's own arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsin.engine.managed.pixels import processor_cap
from opsin.models.facts import facts_of
from opsin.vision.idefics3 import Idefics3Family
from opsin.vision.plan import Family, Size
from opsin.vision.qwen_vl import QwenVLFamily
from opsin.vision.registry import family_for

sides = st.integers(60, 4000)


def family(model: str) -> Family:
    facts = facts_of(model)
    assert facts is not None
    return family_for(facts.vision)


@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen3-VL-8B-Instruct"])
@given(sides, sides, st.integers(256, 8192))
def test_no_picture_of_qwen_costs_more(model: str, width: int, height: int, max_tokens: int) -> None:
    whole = family(model)
    assert isinstance(whole, QwenVLFamily)
    cap = processor_cap(whole, max_tokens)
    assert cap is not None
    pixels = cap["max_pixels"]
    assert isinstance(pixels, int)
    capped = replace(whole, max_pixels=pixels, min_pixels=min(whole.min_pixels, pixels))
    assert capped.count(Size(width, height)).image_tokens <= max_tokens


@given(sides, sides, st.integers(128, 1024))
def test_no_picture_of_smolvlm_costs_more(width: int, height: int, max_tokens: int) -> None:
    whole = family("HuggingFaceTB/SmolVLM-256M-Instruct")
    assert isinstance(whole, Idefics3Family)
    cap = processor_cap(whole, max_tokens)
    assert cap is not None
    size = cap["size"]
    assert isinstance(size, dict)
    capped = replace(whole, longest_edge=size["longest_edge"])
    assert capped.count(Size(width, height)).image_tokens <= max_tokens


def test_a_cap_is_never_above_the_models_own() -> None:
    for model in ("Qwen/Qwen2.5-VL-7B-Instruct", "HuggingFaceTB/SmolVLM-256M-Instruct"):
        assert processor_cap(family(model), 10**6) is None
