"""Recipes: what they say of their tiles and of their cost, for every family that has one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from opsin.core.conversation import Detail
from opsin.core.errors import MediaError
from opsin.media.render import execute
from opsin.models.facts import known_checkpoints
from opsin.models.files import Document
from opsin.vision import chameleon, idefics3, llava, llava_next, llava_onevision
from opsin.vision.plan import recipe_of
from opsin.vision.qwen_vl import from_files
from opsin.vision.recipe import Filter, Resize, Window, middle, resized, squared
from opsin.vision.registry import family_for
from opsin.vision.size import Size
from tests.unit.vision.oracles import files, of_transformers

FAMILIES = {family.name: family for family in (family_for(facts.vision) for facts in known_checkpoints().values())}
WITHOUT = {"deepseek_vl_v2", "kimi_vl", "minicpmv", "minicpmv4_6", "minicpmv4_7", "molmo"}


def test_which_families_leave_their_pixels_to_their_own_processor() -> None:
    without = {name for name, family in FAMILIES.items() if recipe_of(family, Size(640, 480)) is None}
    assert without == WITHOUT


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - WITHOUT))
@settings(max_examples=30, deadline=None)
@given(
    width=st.integers(1, 4000),
    height=st.integers(1, 4000),
    detail=st.sampled_from(Detail),
    num_pictures=st.integers(1, 2),
)
def test_a_recipe_makes_the_tiles_that_were_counted(
    name: str, width: int, height: int, detail: Detail, num_pictures: int
) -> None:
    family, size = FAMILIES[name], Size(width, height)
    try:
        count = family.count(size, detail, num_pictures)
    except MediaError:
        with pytest.raises(MediaError):
            recipe_of(family, size, detail, num_pictures)
        return
    recipe = recipe_of(family, size, detail, num_pictures)
    assert recipe is not None
    recipe.check(size)
    assert recipe.num_tiles == count.num_tiles


def test_onevision_squares_pictures_in_company_as_its_processor_does() -> None:
    images = of_transformers("llava_onevision.image_processing_pil_llava_onevision")
    processor = images.LlavaOnevisionImageProcessorPil(do_rescale=False, do_normalize=False)
    family = llava_onevision.from_files(files("llava_onevision", processor))
    for size in (Size(90, 31), Size(31, 90), Size(50, 50), Size(33, 40)):
        pixels = np.random.default_rng(7).integers(0, 256, (size.height, size.width, 3), dtype=np.uint8)
        picture = Image.fromarray(pixels)
        made = np.asarray(processor([[picture, picture]])["pixel_values"][0][0]).transpose(1, 2, 0)
        recipe = recipe_of(family, size, num_pictures=2)
        assert recipe is not None
        assert execute(picture, recipe) == made.astype(np.uint8).tobytes()


@pytest.mark.parametrize(("stated", "expected"), [(0, Filter.NEAREST), (1, Filter.LANCZOS), (5, Filter.HAMMING)])
def test_a_checkpoint_may_state_another_filter(stated: int, expected: Filter) -> None:
    family = from_files(stating(f'{{"resample": {stated}}}'))
    assert recipe_of(family, Size(560, 280)) == resized(Size(560, 280), expected)


@pytest.mark.parametrize(
    ("from_files", "text"),
    [
        (from_files, '{"do_resize": false}'),
        (from_files, '{"resample": 6}'),
        (chameleon.from_files, '{"crop_size": {"height": 256, "width": 256}}'),
        (llava.from_files, '{"size": {"height": 9, "width": 9}, "crop_size": {"height": 5, "width": 5}}'),
        (llava.from_files, '{"size": {"height": 9, "width": 9}, "do_pad": true}'),
        (llava_next.from_files, '{"size": {"shortest_edge": 336}, "crop_size": {"height": 224, "width": 224}}'),
        (llava_next.from_files, '{"size": {"shortest_edge": 336}, "image_grid_pinpoints": [[400, 400]]}'),
    ],
)
def test_what_recipes_cannot_say_is_the_processors(from_files: Any, text: str) -> None:
    assert recipe_of(from_files(stating(text)), Size(300, 200)) is None


def stating(text: str) -> Any:
    return replace(files("any"), image_processor=Document("preprocessor_config.json", text.encode()))


def test_the_work_of_a_recipe_is_known_before() -> None:
    recipe = idefics3.Idefics3Family(longest_edge=256, tile_side=128).recipe(Size(100, 50))
    assert set(recipe.work(Size(100, 50))) == {
        *(Size(256, 128), Size(256, 50)),  # scaled, and what is between its two passes
        *(Size(256, 128), Size(256, 128)),
        *(Size(128, 128), Size(128, 128)),
    }


def test_the_middle_and_the_square() -> None:
    (view,) = middle(Size(300, 200), 10, Size(10, 10), Filter.BICUBIC).views
    assert view.steps == (Resize(Size(15, 10), Filter.BICUBIC), Window(2, 0, Size(10, 10)))
    (view,) = squared(Size(5, 2), 7, Filter.BOX, (1, 2, 3)).views
    assert view.steps == (Window(0, -1, Size(5, 5), (1, 2, 3)), Resize(Size(7, 7), Filter.BOX))
