"""Fast tiles: how far they are from the exact ones, and what they are made from."""

from __future__ import annotations

import math
from functools import cache
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from opsin.bench.photo import PhotoMaker
from opsin.media import fast
from opsin.media.config import ACCEPTED_BY_DEFAULT
from opsin.media.header import read_header
from opsin.media.render import render
from opsin.media.types import RenderMode
from opsin.vision.idefics3 import Idefics3Family
from opsin.vision.plan import recipe_of
from opsin.vision.qwen_vl import QwenVLFamily
from opsin.vision.recipe import Filter, RenderRecipe, Resize, View, Window, resized, whole
from opsin.vision.size import Size

IDEFICS3 = Idefics3Family(longest_edge=512, tile_side=128)
QWEN = QwenVLFamily(max_pixels=80 * 28 * 28)
PHOTOS = PhotoMaker(3)


@cache
def photo(width: int, height: int, image_format: str, orientation: int = 1) -> bytes:
    exif = Image.Exif()
    exif[0x112] = orientation
    buffer = BytesIO()
    PHOTOS.draw(0, width, height).convert("RGB").save(buffer, image_format, quality=85, exif=exif)
    return buffer.getvalue()


def rendered(data: bytes, recipe: RenderRecipe, mode: RenderMode) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    header = read_header(data, None, ACCEPTED_BY_DEFAULT)
    return np.frombuffer(render(data, header, recipe, mode), np.uint8).astype(np.float64)


def psnr(data: bytes, recipe: RenderRecipe) -> float:
    """Of fast tiles beside exact ones, in dB."""
    error = rendered(data, recipe, RenderMode.FAST) - rendered(data, recipe, RenderMode.EXACT)
    mean = float(np.mean(error**2))
    return 10 * math.log10(255**2 / mean) if mean else math.inf


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("family", [IDEFICS3, QWEN], ids=lambda family: family.name)
@pytest.mark.parametrize("size", [Size(1000, 756), Size(383, 512), Size(160, 120)], ids=str)
def test_fast_tiles_are_near_the_exact_ones(
    image_format: str, orientation: int, family: Idefics3Family | QwenVLFamily, size: Size
) -> None:
    upright = size if orientation == 1 else Size(size.height, size.width)
    recipe = recipe_of(family, upright)
    assert recipe is not None
    assert psnr(photo(size.width, size.height, image_format, orientation), recipe) > 33


@pytest.mark.parametrize("image_format", ["JPEG", "PNG"])
@pytest.mark.parametrize("size", [Size(1001, 777), Size(3, 999), Size(999, 3), Size(1, 1)], ids=str)
def test_odd_sizes(image_format: str, size: Size) -> None:
    data = Image.effect_noise((size.width, size.height), 60)
    buffer = BytesIO()
    data.save(buffer, image_format)
    assert psnr(buffer.getvalue(), resized(Size(30, 20), Filter.BICUBIC)) > 30


def test_pixels_that_a_view_shows_or_cuts_are_all_decoded() -> None:
    data = photo(640, 480, "JPEG")
    small = Resize(Size(64, 48), Filter.BICUBIC)
    piece = Window(100, 100, Size(200, 100))
    assert psnr(data, whole(Size(640, 480))) == math.inf
    assert fast.needed(RenderRecipe(Size(64, 48), (View((small,)), View((piece, small))))) is None
    assert fast.needed(whole(Size(640, 480))) is None


def test_of_resizes_in_a_row_only_the_last_is_done() -> None:
    exact = IDEFICS3.recipe(Size(640, 480))
    (tiles, overview) = fast.shortened(exact).views
    assert tiles.steps == (Resize(Size(512, 384), Filter.LANCZOS),)
    assert overview.steps == (*tiles.steps, Resize(Size(128, 128), Filter.LANCZOS))
    one_view = IDEFICS3.recipe(Size(512, 512)).views[0].steps
    other = View((Resize(Size(7, 7), Filter.BOX), *one_view[1:]))
    unlike = RenderRecipe(Size(128, 128), (View(one_view, 4, 4), other))
    assert fast.shortened(unlike) == unlike


@pytest.mark.parametrize(
    ("size", "target", "scale"),
    [
        (Size(4032, 3024), Size(2048, 1536), 2),
        (Size(4032, 3024), Size(2200, 1650), 1),
        (Size(4032, 3024), Size(336, 336), 4),
        (Size(4032, 3024), Size(200, 180), 8),
        (Size(4032, 100), Size(336, 336), 1),
        (Size(10, 10), Size(20, 20), 1),
    ],
)
def test_the_fraction_leaves_enough(size: Size, target: Size, scale: int) -> None:
    assert fast.scale(size, target) == scale
