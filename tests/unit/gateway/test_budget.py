"""Budgets of visual tokens: met exactly, refused with both numbers, shared fairly, for every family."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsin.core.conversation import Detail
from opsin.core.errors import InvalidRequest, MediaError
from opsin.gateway.budget import Fitted, Want, fit
from opsin.gateway.config import GatewayConfig, OverBudget
from opsin.models.facts import known_checkpoints
from opsin.vision.budget import within
from opsin.vision.idefics3 import Idefics3Family
from opsin.vision.llava import LlavaFamily
from opsin.vision.pixtral import PixtralFamily
from opsin.vision.plan import Count, Family, Size
from opsin.vision.qwen_vl import QwenVLFamily
from opsin.vision.registry import family_for

# One checkpoint of every set of parameters.
FAMILIES: dict[str, Family] = {
    model_id: family_for(known_checkpoints()[model_id].vision)
    for model_id in {facts.vision_source: model_id for model_id, facts in known_checkpoints().items()}.values()
}
QWEN = QwenVLFamily(name="qwen2_5_vl", min_pixels=3136, max_pixels=12845056)
SMOLVLM = Idefics3Family(name="smolvlm", longest_edge=2048, tile_side=512, tokens_per_tile=64)
PHOTO = Size(4032, 3024)

SIZES = st.builds(Size, st.integers(1, 4096), st.integers(1, 4096))
WANTS = st.lists(st.builds(Want, SIZES, st.sampled_from(Detail), st.just("p")), min_size=1, max_size=5)
LIMITS = st.none() | st.integers(1, 20_000)
CONFIGS = st.builds(
    GatewayConfig,
    max_image_tiles=st.none() | st.integers(1, 20),
    max_image_tokens=LIMITS,
    max_request_image_tokens=LIMITS,
    over_budget=st.sampled_from(OverBudget),
)
ROOMS = st.none() | st.integers(-10, 40_000)


def want(size: Size = PHOTO, detail: Detail = Detail.AUTO, place: int = 0) -> Want:
    return Want(size, detail, f"messages.0.content.{place}.image_url")


def alike(count: int, size: Size = PHOTO, detail: Detail = Detail.AUTO) -> list[Want]:
    return [want(size, detail, place) for place in range(count)]


def limits(**values: object) -> GatewayConfig:
    return GatewayConfig.model_validate(values)


def tokens(fitted: Sequence[Fitted[Family]]) -> list[int]:
    return [picture.count.image_tokens for picture in fitted]


def prompt_tokens(counts: Sequence[Count]) -> int:
    return sum(count.prompt_tokens for count in counts)


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("max_image_tiles", 17, "messages.0.content.1.image_url"),
        ("max_image_tokens", 17 * 64, "messages.0.content.1.image_url"),
        ("max_request_image_tokens", 18 * 64, "messages"),
    ],
)
@pytest.mark.parametrize("over_budget", [OverBudget.AUTO, OverBudget.REJECT])
def test_the_limit_is_met_exactly(field: str, value: int, param: str, over_budget: OverBudget) -> None:
    wants = [want(Size(512, 512), Detail.LOW), want(Size(512, 512), Detail.HIGH, 1)]
    as_asked = fit(SMOLVLM, wants, None, limits(over_budget=over_budget, **{field: value}))
    assert tokens(as_asked) == [64, 17 * 64]
    with pytest.raises(MediaError, match=rf" {value} .* {value - 1} \({field}\)") as refused:
        fit(SMOLVLM, wants, None, limits(over_budget=over_budget, **{field: value - 1}))
    assert (refused.value.code, refused.value.param) == ("too_many_image_tokens", param)


@pytest.mark.parametrize("detail", [Detail.HIGH, Detail.ORIGINAL])
def test_a_phone_photo_in_8192_tokens_is_scaled_or_refused_with_both_numbers(detail: Detail) -> None:
    (photo,) = fit(QWEN, [want()], 8000, limits())
    assert (photo.scaled, photo.count.used, photo.count.image_tokens) == (True, Size(2884, 2156), 7931)
    with pytest.raises(InvalidRequest, match=r" 15554 tokens of the context .* 8000 ") as refused:
        fit(QWEN, [want(detail=detail)], 8000, limits())
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", want().param)
    (photo,) = fit(QWEN, [want(detail=detail)], 8000, limits(over_budget="downscale"))
    assert photo.count.image_tokens == 7931
    with pytest.raises(InvalidRequest, match=r" 15554 .* 8000 "):
        fit(QWEN, [want()], 8000, limits(over_budget="reject"))


def test_what_fits_stays_as_it_is() -> None:
    for over_budget in OverBudget:
        fitted = fit(QWEN, alike(2), 2 * 15554, limits(over_budget=over_budget))
        assert [picture.family for picture in fitted] == [QWEN, QWEN]
        assert not any(picture.scaled for picture in fitted)


def test_no_pictures_need_nothing() -> None:
    assert fit(QWEN, [], -5, limits(max_request_image_tokens=1)) == ()


def test_a_small_picture_leaves_its_share_to_the_others() -> None:
    small = want(Size(280, 280), place=9)
    alone = fit(QWEN, alike(2), 10_000, limits())
    beside = fit(QWEN, [*alike(2), small], 10_102, limits())
    assert tokens(beside) == [*tokens(alone), 100]
    assert not beside[2].scaled


def test_a_fixed_picture_takes_its_own_first() -> None:
    fixed = want(Size(1920, 1080), Detail.HIGH, 9)
    beside = fit(QWEN, [want(), fixed, want()], 10_000 + 2693, limits())
    assert tokens(beside)[1] == 2691
    assert [beside[0], beside[2]] == list(fit(QWEN, alike(2), 10_000, limits()))


def test_what_steps_leave_over_is_for_the_next() -> None:
    """A cut picture takes 5 tiles or 10: of 600 tokens each, the first one can use only 5, and the others 10."""
    fitted = fit(SMOLVLM, alike(3, Size(640, 480)), 3 * 600, limits())
    assert tokens(fitted) == [320, 640, 640]


def test_a_picture_that_is_one_size_only_is_refused() -> None:
    with pytest.raises(MediaError, match=r" 576 visual tokens with the detail asked for; the limit is 575 "):
        fit(LlavaFamily(), [want()], None, limits(max_image_tokens=575))


def test_however_far_it_is_scaled_it_takes_one_tile() -> None:
    with pytest.raises(MediaError, match=r"takes 64 visual tokens scaled down .* limit is 63 "):
        fit(SMOLVLM, [want()], None, limits(max_image_tokens=63))


def test_a_thin_picture_is_no_obstacle() -> None:
    """At the lowest caps nothing would be left of it, and it takes little."""
    thin = want(Size(1000, 20), place=1)
    fitted = fit(PixtralFamily(), [want(), thin], 500, limits())
    assert not fitted[1].scaled
    assert fitted[0].count.prompt_tokens <= 500 - fitted[1].count.prompt_tokens


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=30, deadline=None)
@given(wants=WANTS, room=ROOMS, config=CONFIGS)
def test_every_limit_holds(name: str, wants: list[Want], room: int | None, config: GatewayConfig) -> None:
    family = FAMILIES[name]
    try:
        fitted = fit(family, wants, room, config)
    except InvalidRequest:
        return
    counts = [picture.count for picture in fitted]
    assert all(count.num_tiles <= (config.max_image_tiles or 10**9) for count in counts)
    assert all(count.image_tokens <= (config.max_image_tokens or 10**9) for count in counts)
    assert sum(count.image_tokens for count in counts) <= (config.max_request_image_tokens or 10**9)
    assert room is None or prompt_tokens(counts) <= room
    for asked, picture in zip(wants, fitted, strict=True):
        assert picture.count == picture.family.count(asked.size, asked.detail, len(wants))
        assert picture.scaled == (picture.family != family)
        if asked.detail in (Detail.HIGH, Detail.ORIGINAL):
            assert not picture.scaled or config.over_budget is OverBudget.DOWNSCALE
        assert not picture.scaled or config.over_budget is not OverBudget.REJECT


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=30, deadline=None)
@given(wants=WANTS, share=st.floats(0, 1), rng=st.randoms(use_true_random=False))
def test_sharing_is_fair_whatever_the_order(name: str, wants: list[Want], share: float, rng: random.Random) -> None:
    family, config = FAMILIES[name], limits(over_budget="downscale")
    try:
        room = int(share * prompt_tokens([family.count(one.size, one.detail, len(wants)) for one in wants]))
        fitted = fit(family, wants, room, config)
    except InvalidRequest:
        return
    shuffled = fit(family, rng.sample(wants, len(wants)), room, config)
    assert sorted(tokens(shuffled)) == sorted(tokens(fitted))
    if all(takes_at_least(family, one, len(wants)) <= room // len(wants) for one in wants):
        for one, picture in zip(wants, fitted, strict=True):
            assert num_caps(picture.family) >= num_caps(with_an_equal_part(family, one, room, len(wants)))


def takes_at_least(family: Family, one: Want, num_pictures: int) -> int:
    lowest = family.with_max_pixels(1)
    try:
        return lowest.count(one.size, one.detail, num_pictures).prompt_tokens
    except MediaError:
        return family.count(one.size, one.detail, num_pictures).prompt_tokens


def with_an_equal_part(family: Family, one: Want, room: int, num_pictures: int) -> Family:
    lowered = within(
        family,
        one.size,
        lambda count: count.prompt_tokens <= room // num_pictures,
        detail=one.detail,
        num_pictures=num_pictures,
    )
    assert lowered is not None
    return lowered


def num_caps(family: Family) -> int:
    """How far a family is lowered: the fewer the more."""
    return len(family.caps())
