"""The largest version of a picture that fits, for every family that the facts know."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from opsin.core.conversation import Detail
from opsin.core.errors import MediaError
from opsin.models.facts import known_checkpoints
from opsin.vision.budget import fitting
from opsin.vision.estimate import Estimate
from opsin.vision.glm4v import Glm4vFamily
from opsin.vision.idefics3 import Idefics3Family
from opsin.vision.kimi_vl import KimiVLFamily
from opsin.vision.mllama import MllamaFamily
from opsin.vision.pixtral import PixtralFamily
from opsin.vision.plan import Count, Family, Size
from opsin.vision.qwen_vl import QwenVLFamily
from opsin.vision.registry import family_for

# One checkpoint of every set of parameters.
FAMILIES: dict[str, Family] = {
    model_id: family_for(known_checkpoints()[model_id].vision)
    for model_id in {facts.vision_source: model_id for model_id, facts in known_checkpoints().items()}.values()
} | {"estimate": Estimate(name="unknown")}
IN_STEPS = {name: family for name, family in FAMILIES.items() if not isinstance(family.caps(), range)}
CONTINUOUS = {name: family for name, family in FAMILIES.items() if isinstance(family.caps(), range)}
# The same rules with so few caps that every one can be tried.
SMALL: dict[str, Family] = {
    "Qwen": QwenVLFamily(min_pixels=3136, max_pixels=28 * 28 * 8),
    "GLM": Glm4vFamily(max_pixels=2 * 28 * 28 * 6),
    "Pixtral": PixtralFamily(longest_edge=90),
    "Kimi": KimiVLFamily(max_patches=24),
    "estimate": Estimate(name="unknown", max_pixels=80 * 80),
}


def lopsided(width: int, ratio: int) -> Size:
    return Size(width, max(width // ratio, 1))


SMOLVLM = Idefics3Family(longest_edge=2048, tile_side=512, tokens_per_tile=64)
SIZES = st.one_of(
    st.builds(Size, st.integers(1, 4096), st.integers(1, 4096)),
    st.builds(lopsided, st.integers(1, 8192), st.integers(1, 150)),
)


def tokens(family: Family, size: Size, detail: Detail = Detail.AUTO) -> int:
    return family.count(size, detail).image_tokens


def expect_the_best_of_all(family: Family, size: Size, share: float, detail: Detail) -> None:
    """``fitting`` against trying every cap, for a limit between nothing and all of the picture's tokens."""
    try:
        limit = int(tokens(family, size, detail) * share)
        fitting_caps = [cap for cap in family.caps() if tokens(family.with_max_pixels(cap), size, detail) <= limit]
    except MediaError:
        return
    lowered = fitting(family, size, limit, detail=detail)
    if tokens(family, size, detail) <= limit:
        assert lowered == family
    else:
        assert lowered == (family.with_max_pixels(max(fitting_caps)) if fitting_caps else None)


@pytest.mark.parametrize("name", IN_STEPS)
@settings(max_examples=25, deadline=None)
@given(size=SIZES, share=st.floats(0, 1), detail=st.sampled_from(Detail))
def test_in_steps_no_higher_cap_fits(name: str, size: Size, share: float, detail: Detail) -> None:
    expect_the_best_of_all(IN_STEPS[name], size, share, detail)


@pytest.mark.parametrize("name", SMALL)
@settings(max_examples=4, deadline=None)
@given(size=SIZES, share=st.floats(0, 1))
@example(size=Size(640, 480), share=0.5)
def test_between_steps_no_higher_cap_fits(name: str, size: Size, share: float) -> None:
    expect_the_best_of_all(SMALL[name], size, share, Detail.AUTO)


@pytest.mark.parametrize("name", CONTINUOUS)
@settings(max_examples=100, deadline=None)
@given(size=SIZES, caps=st.tuples(st.integers(1, 4096**2), st.integers(1, 4096**2)))
def test_counts_never_fall_as_a_range_of_caps_rises(name: str, size: Size, caps: tuple[int, int]) -> None:
    """Of pictures that no model has to enlarge to one patch."""
    assume(min(size.width, size.height) >= 32)
    low, high = sorted(caps)
    family = CONTINUOUS[name]
    try:
        counts = [
            tokens(capped, size) for capped in (family.with_max_pixels(low), family.with_max_pixels(high), family)
        ]
    except MediaError:
        return
    assert counts == sorted(counts)


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=30, deadline=None)
@given(size=SIZES, max_pixels=st.integers(1, 5000**2))
def test_a_cap_never_makes_a_picture_larger(name: str, size: Size, max_pixels: int) -> None:
    family = FAMILIES[name]
    lowered = family.with_max_pixels(max_pixels)
    try:
        full = family.count(size)
        assert lowered.count(size).used.area <= full.used.area
    except MediaError:
        return
    assert family.with_max_pixels(10**9) == family
    assert lowered.with_max_pixels(10**9) == lowered


@pytest.mark.parametrize(
    ("family", "size", "limit", "expected"),
    [
        (QwenVLFamily(min_pixels=3136, max_pixels=12845056), Size(4032, 3024), 8000, (Size(2884, 2156), 7931)),
        (SMOLVLM, Size(1024, 1024), 700, (Size(1536, 1536), 640)),
        (SMOLVLM, Size(1024, 1024), 64, (Size(512, 512), 64)),
    ],
)
def test_by_hand(family: Family, size: Size, limit: int, expected: tuple[Size, int]) -> None:
    lowered = fitting(family, size, limit)
    assert lowered is not None
    count = lowered.count(size)
    assert (count.used, count.image_tokens) == expected


def test_another_measure() -> None:
    def beside_the_prompt(count: Count) -> int:
        return count.cross_attention_tokens

    family = MllamaFamily()
    assert fitting(family, Size(4032, 3024), 3300) == family
    lowered = fitting(family, Size(4032, 3024), 3300, measure=beside_the_prompt)
    assert lowered is not None
    assert lowered.count(Size(4032, 3024)).num_tiles == 2


def test_nothing_fits() -> None:
    assert fitting(Idefics3Family(), Size(640, 480), 168) is None
    assert fitting(QwenVLFamily(), Size(640, 480), 0) is None
