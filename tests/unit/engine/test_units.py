from __future__ import annotations

import pytest

from opsin.engine.local.messages import PictureData, Tiles
from opsin.engine.local.traits import TRAITS, EncoderUnit, FamilyTraits
from opsin.engine.local.units import leased_units_of, units_of

TILED = FamilyTraits(unit=EncoderUnit.TILE)
WHOLE = FamilyTraits(unit=EncoderUnit.PICTURE)


def picture(pixels: bytes, num_tiles: int = 1, image_tokens: int = 4, side: int = 1) -> PictureData:
    return PictureData("key", image_tokens, Tiles(pixels, num_tiles, side, side))


def keys(one: PictureData, traits: FamilyTraits = TILED, scope: str = "scope") -> list[str]:
    return [unit.key for unit in units_of(scope, one, 0, traits)]


def test_equal_tiles_have_equal_keys_wherever_they_stand():
    a, b = b"abc", b"xyz"
    assert keys(picture(a + b + a, 3, 6)) == [*keys(picture(a)), *keys(picture(b)), *keys(picture(a))]
    assert keys(picture(a)) != keys(picture(b))


def test_a_key_holds_scope_and_shape():
    pixels = bytes(12)
    assert keys(picture(pixels, side=2)) != keys(picture(pixels, side=2), scope="other")
    wide = PictureData("key", 4, Tiles(pixels, 1, 4, 1))
    assert keys(wide) != keys(picture(pixels, side=2))


def test_tiles_share_the_tokens_and_the_pixels():
    units = units_of("scope", picture(b"abcxyz", 2, 8), 3, TILED)
    assert [(unit.picture, unit.share, unit.num_tokens) for unit in units] == [(3, 0.5, 4)] * 2
    assert [unit.tiles and unit.tiles.pixels for unit in units] == [b"abc", b"xyz"]


def test_a_picture_stays_one_unit_where_tiles_are_not_independent():
    (unit,) = units_of("scope", picture(b"abcxyz", 2, 7), 0, WHOLE)
    assert unit.num_tokens == 7
    assert unit.tiles == Tiles(b"abcxyz", 2, 1, 1)


def test_the_pictures_own_size_counts_only_where_features_depend_on_it():
    dropping = FamilyTraits(unit=EncoderUnit.PICTURE, drops_padding=True)
    wide, tall = (PictureData("key", 4, Tiles(b"abc", 1, 1, 1, original)) for original in ((9, 8), (8, 9)))
    assert keys(wide) == keys(tall)
    assert keys(wide, WHOLE) == keys(tall, WHOLE)
    assert keys(wide, dropping) != keys(tall, dropping)


def test_leased_units_have_no_pixels():
    units = leased_units_of(PictureData("key", 6, None), 1, ("x", "y", "x"))
    assert [(unit.key, unit.num_tokens) for unit in units] == [("x", 2), ("y", 2), ("x", 2)]
    assert {unit.tiles for unit in units} == {None}


@pytest.mark.parametrize(
    ("one", "problem"),
    [
        (picture(b"abcd"), "4 bytes of pixels where 3 are expected"),
        (picture(b"abcxyz", 2, 5), "5 image tokens do not fit 2 units"),
        (picture(b"abc", 1, 0), "0 image tokens do not fit 1 units"),
    ],
)
def test_what_does_not_add_up_is_refused(one: PictureData, problem: str):
    with pytest.raises(ValueError, match=problem):
        units_of("scope", one, 0, TILED)


def test_every_family_says_what_its_unit_is():
    assert TRAITS["idefics3"].unit is EncoderUnit.TILE
