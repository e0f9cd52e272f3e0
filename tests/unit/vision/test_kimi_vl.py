"""Kimi-VL by hand: Transformers does not implement it. Golden values are in test_registry."""

from __future__ import annotations

import pytest

from opsin.core.conversation import Detail
from opsin.core.errors import MediaError
from opsin.vision.kimi_vl import KimiVLFamily, from_files
from opsin.vision.plan import Size
from tests.unit.vision.oracles import files


@pytest.mark.parametrize(
    ("size", "used", "image_tokens"),
    [
        (Size(1, 1), Size(1, 1), 1),
        (Size(28, 29), Size(28, 29), 2),  # padded up to multiples of 28
        (Size(896, 896), Size(896, 896), 1024),  # 64 x 64 patches are still allowed
        (Size(909, 909), Size(909, 909), 33 * 33),  # so are 64 whole patches and a rest, which padding makes 66
        (Size(910, 910), Size(896, 896), 1024),
        (Size(7140, 7), Size(7140, 7), 255),
    ],
)
def test_tokens_by_hand(size: Size, used: Size, image_tokens: int) -> None:
    count = KimiVLFamily().count(size)
    assert (count.used, count.image_tokens, count.marker_tokens) == (used, image_tokens, 4)


def test_sides_without_positions_are_refused() -> None:
    with pytest.raises(MediaError, match="The picture is 7141 x 7 pixels; this model takes sides of 1 to 7140"):
        KimiVLFamily().count(Size(7141, 7))


def test_low_is_512_pixels_square() -> None:
    assert KimiVLFamily().count(Size(4032, 3024), Detail.LOW).image_tokens <= 361
    assert KimiVLFamily().count(Size(200, 100), Detail.LOW) == KimiVLFamily().count(Size(200, 100))


def test_parameters_default_to_the_a3b_models() -> None:
    assert from_files(files("kimi_vl", None)) == KimiVLFamily()
