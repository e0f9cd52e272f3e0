"""Towards an engine with a processor of its own: what a smaller picture really costs there, for every family."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsin.core.conversation import Detail
from opsin.core.errors import MediaError
from opsin.models.facts import known_checkpoints
from opsin.vision.budget import fitting
from opsin.vision.by_size import BySize
from opsin.vision.plan import Family, Size
from opsin.vision.registry import family_for

FAMILIES: dict[str, Family] = {
    model_id: family_for(known_checkpoints()[model_id].vision)
    for model_id in {facts.vision_source: model_id for model_id, facts in known_checkpoints().items()}.values()
}
QWEN = family_for(known_checkpoints()["Qwen/Qwen2.5-VL-7B-Instruct"].vision)
SMOLVLM = family_for(known_checkpoints()["HuggingFaceTB/SmolVLM-256M-Instruct"].vision)
INTERNVL = family_for(known_checkpoints()["OpenGVLab/InternVL3-8B"].vision)
PHOTO = Size(3024, 4032)
SIZES = st.builds(Size, st.integers(1, 4096), st.integers(1, 4096))


def test_without_a_cap_a_picture_goes_as_it_came() -> None:
    for detail in (Detail.AUTO, Detail.HIGH, Detail.ORIGINAL):
        assert BySize.of(QWEN).size_to_send(PHOTO, detail) is None
        assert BySize.of(QWEN).count(PHOTO, detail) == QWEN.count(PHOTO)


def test_a_picture_that_keeps_its_shape_is_sent_as_the_processor_would_make_it() -> None:
    lowered = fitting(BySize.of(QWEN), PHOTO, 7931)
    assert lowered is not None
    assert lowered.size_to_send(PHOTO) == Size(2156, 2884)
    count = lowered.count(PHOTO)
    assert (count.original, count.used, count.image_tokens) == (PHOTO, Size(2156, 2884), 7931)
    assert QWEN.count(Size(2156, 2884)).image_tokens == 7931


def test_a_budget_lowers_within_the_bounds_of_a_request() -> None:
    bounded = BySize(QWEN, QWEN.with_max_pixels(1_000_000))
    assert bounded.count(PHOTO).image_tokens == QWEN.with_max_pixels(1_000_000).count(PHOTO).image_tokens
    assert bounded.with_max_pixels(2_000_000).count(PHOTO) == bounded.count(PHOTO)
    lowered = fitting(bounded, PHOTO, 500)
    assert lowered is not None
    assert lowered.count(PHOTO).image_tokens <= 500 < bounded.count(PHOTO).image_tokens


def test_low_is_the_low_size() -> None:
    low = BySize.of(QWEN)
    assert low.size_to_send(PHOTO, Detail.LOW) == Size(420, 588)
    assert low.count(PHOTO, Detail.LOW).image_tokens == QWEN.count(PHOTO, Detail.LOW).image_tokens == 315
    assert BySize.of(INTERNVL).count(PHOTO, Detail.LOW).num_tiles == 1


@pytest.mark.parametrize("size", [PHOTO, Size(1920, 1080), Size(512, 512), Size(3000, 300)], ids=str)
def test_smolvlm_is_not_lowered_by_size(size: Size) -> None:
    """Its processor enlarges every picture to the longest edge, so a smaller one costs the same, or more."""
    assert SMOLVLM.count(size, Detail.LOW).image_tokens == 64
    family = BySize.of(SMOLVLM)
    as_it_is = SMOLVLM.count(size)
    assert family.count(size, Detail.LOW) == as_it_is
    assert family.size_to_send(size, Detail.LOW) is None
    assert fitting(family, size, as_it_is.image_tokens - 1) is None


def test_nothing_is_enlarged_to_fit() -> None:
    small = Size(300, 300)
    assert INTERNVL.with_max_pixels(448 * 448).count(small).used == Size(448, 448)
    assert BySize.of(INTERNVL).with_max_pixels(448 * 448).size_to_send(small) is None


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=60, deadline=None)
@given(size=SIZES, detail=st.sampled_from(Detail), share=st.floats(0, 1))
def test_what_is_promised_is_what_the_engine_counts(name: str, size: Size, detail: Detail, share: float) -> None:
    engine = FAMILIES[name]
    family = BySize.of(engine)
    try:
        as_it_is = family.count(size)
        family = fitting(family, size, int(share * as_it_is.image_tokens), detail=detail) or family
        sent, count = family.size_to_send(size, detail), family.count(size, detail)
    except MediaError:
        return
    if sent is None:
        assert count == as_it_is
        return
    assert (sent.width <= size.width, sent.height <= size.height) == (True, True)
    by_engine = engine.count(sent)
    assert (by_engine.used, by_engine.image_tokens, by_engine.marker_tokens) == (
        count.used,
        count.image_tokens,
        count.marker_tokens,
    )
    assert count.original == size
    assert count.prompt_tokens + count.cross_attention_tokens < as_it_is.prompt_tokens + as_it_is.cross_attention_tokens
