"""Plans against the real Idefics3 and SmolVLM processors (PIL backend)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from transformers import Idefics3Processor
from transformers.image_utils import SizeDict
from transformers.models.idefics3.image_processing_pil_idefics3 import (
    Idefics3ImageProcessorPil,
    get_resize_output_image_size,
)
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.models.smolvlm.processing_smolvlm import (
    get_image_prompt_string,  # pyright: ignore[reportUnknownVariableType] untyped
)

from opsin.core.conversation import Detail
from opsin.media.render import execute
from opsin.vision.idefics3 import Idefics3Family
from opsin.vision.plan import Count, RenderRecipe, Size, planned
from tests.checkpoints import tokenizer

Pixels = NDArray[np.uint8]


def family(
    longest_edge: int = 2048, tile_side: int = 512, tokens_per_tile: int = 64, do_image_splitting: bool = True
) -> Idefics3Family:
    return Idefics3Family(
        name="idefics3",
        longest_edge=longest_edge,
        tile_side=tile_side,
        tokens_per_tile=tokens_per_tile,
        do_image_splitting=do_image_splitting,
    )


SMOLVLM_256M = family()
DEMO = family(longest_edge=256, tile_side=128, tokens_per_tile=16)
FAMILIES = {
    "SmolVLM-256M": SMOLVLM_256M,
    "SmolVLM-2.2B": family(longest_edge=1536, tile_side=384, tokens_per_tile=81),
    "Idefics3-8B": family(longest_edge=4 * 364, tile_side=364, tokens_per_tile=169),
    "demo": DEMO,
    "over the 4096 bound": family(longest_edge=5000, tile_side=500, tokens_per_tile=9),
    "edge not a multiple of the tile": family(longest_edge=1000, tile_side=384, tokens_per_tile=9),
    "edge under the tile": family(longest_edge=200, tile_side=384, tokens_per_tile=9),
}

SIDES = st.one_of(st.integers(1, 64), st.integers(1, 8192))


class ShapeOnly(Idefics3ImageProcessorPil):
    """The real processor on pictures without memory: its own decisions, no pixel work."""

    def resize(self, image: Any, size: SizeDict, resample: Any = None, **kwargs: Any) -> Any:
        if size.longest_edge:
            height, width = get_resize_output_image_size(image, resolution_max_side=size.longest_edge)
        else:
            assert size.height and size.width
            height, width = size.height, size.width
        return pixels_without_memory(Size(width, height))


def pixels_without_memory(size: Size) -> Any:
    return np.broadcast_to(np.uint8(0), (3, size.height, size.width))


def grid_of_the_processor(family: Idefics3Family, size: Size) -> tuple[int, int, int]:
    """Tiles, rows and columns that ``_preprocess`` would arrive at."""
    processor = ShapeOnly(size={"longest_edge": family.longest_edge}, max_image_size={"longest_edge": family.tile_side})
    scaled = processor.resize(pixels_without_memory(size), SizeDict(longest_edge=family.longest_edge))
    fitted = processor.resize_for_vision_encoder(scaled, family.tile_side)
    frames, rows, columns = processor.split_images(fitted, {"longest_edge": family.tile_side})
    assert {frame.shape for frame in frames} == {(3, family.tile_side, family.tile_side)}
    return len(frames), rows, columns


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@settings(max_examples=100, deadline=None)
@given(width=SIDES, height=SIDES)
@example(width=1, height=1)
@example(width=1, height=8192)
@example(width=8192, height=1)
@example(width=8192, height=8192)
@example(width=2, height=4096)
@example(width=4097, height=3)
def test_grid_is_the_processors(family: Idefics3Family, width: int, height: int) -> None:
    plan = planned(family, Size(width, height), Detail.HIGH)
    rows, columns = grid_of(plan.recipe)
    assert (plan.num_tiles, rows, columns) == grid_of_the_processor(family, Size(width, height))
    assert plan.recipe.num_tiles == plan.num_tiles
    plan.recipe.check(Size(width, height))


@pytest.mark.parametrize(
    ("width", "height", "small", "large"),
    [
        (336, 336, 1088, 1377),
        (512, 512, 1088, 1377),
        (640, 480, 832, 1053),
        (1024, 1024, 1088, 1377),
        (1920, 1080, 832, 1053),
        (4032, 3024, 832, 1053),
    ],
)
def test_golden_values(width: int, height: int, small: int, large: int) -> None:
    size = Size(width, height)
    assert planned(SMOLVLM_256M, size, Detail.AUTO).image_tokens == small
    assert planned(FAMILIES["SmolVLM-2.2B"], size, Detail.AUTO).image_tokens == large
    assert planned(SMOLVLM_256M, size, Detail.LOW).image_tokens == 64


@pytest.mark.parametrize(
    ("do_image_splitting", "detail", "num_tiles"),
    [
        (True, Detail.AUTO, 17),
        (False, Detail.AUTO, 1),
        (True, Detail.LOW, 1),
        (False, Detail.LOW, 1),
        (True, Detail.HIGH, 17),
        (False, Detail.HIGH, 17),
        (False, Detail.ORIGINAL, 17),
    ],
)
def test_detail_decides_about_splitting(do_image_splitting: bool, detail: Detail, num_tiles: int) -> None:
    plan = planned(family(do_image_splitting=do_image_splitting), Size(1024, 1024), detail)
    assert (plan.num_tiles, plan.image_tokens) == (num_tiles, num_tiles * 64)


def test_used_is_what_the_encoder_sees() -> None:
    plan = planned(SMOLVLM_256M, Size(640, 480), Detail.AUTO)
    assert (plan.original, plan.used) == (Size(640, 480), Size(2048, 1536))
    assert planned(SMOLVLM_256M, Size(640, 480), Detail.LOW).used == Size(512, 512)


def processor_of(family: Idefics3Family, *, split: bool) -> Idefics3Processor:
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": family.longest_edge},
        max_image_size={"longest_edge": family.tile_side},
        do_image_splitting=split,
    )
    return Idefics3Processor(images, tokenizer(), image_seq_len=family.tokens_per_tile)


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("size", [Size(256, 256), Size(300, 100), Size(40, 200), Size(1, 700), Size(90, 2)])
def test_slot_is_the_processors_expansion(size: Size, split: bool) -> None:
    processor = processor_of(DEMO, split=split)
    plan = planned(DEMO, size, Detail.HIGH if split else Detail.LOW)
    tokens: Any = processor(
        text="<image>", images=[[picture_of(size)]], images_kwargs={"input_data_format": "channels_last"}
    )
    assert tokens["input_ids"][0] == processor.tokenizer(plan.slot)["input_ids"]
    assert tokens["input_ids"][0].count(processor.image_token_id) == plan.image_tokens
    assert len(tokens["pixel_values"][0]) == plan.num_tiles


@settings(max_examples=100, deadline=None)
@given(width=SIDES, height=SIDES, detail=st.sampled_from(Detail))
def test_count_is_that_of_the_plan_and_markers_are_those_of_its_slot(width: int, height: int, detail: Detail) -> None:
    plan = planned(SMOLVLM_256M, Size(width, height), detail)
    count = SMOLVLM_256M.count(Size(width, height), detail)
    assert count == Count(
        original=plan.original,
        used=plan.used,
        num_tiles=plan.num_tiles,
        image_tokens=plan.image_tokens,
        marker_tokens=plan.marker_tokens,
    )
    markers = re.findall(r"<(?!image>)[^>]+>|\n+", plan.slot)
    assert count.marker_tokens == len(markers)
    assert count.image_tokens == plan.slot.count("<image>")


def test_a_cap_lowers_the_longest_edge_to_whole_tiles() -> None:
    assert SMOLVLM_256M.with_max_pixels(1700 * 1700) == family(longest_edge=1536)
    assert SMOLVLM_256M.with_max_pixels(1) == family(longest_edge=512)
    assert SMOLVLM_256M.with_max_pixels(10**9) == SMOLVLM_256M
    assert list(SMOLVLM_256M.caps()) == [512**2, 1024**2, 1536**2, 2048**2]


@settings(max_examples=50, deadline=None)
@given(width=st.integers(1, 2000), height=st.integers(1, 2000), detail=st.sampled_from(Detail))
def test_slot_is_smolvlms_expansion(width: int, height: int, detail: Detail) -> None:
    plan = planned(DEMO, Size(width, height), detail)
    assert plan.slot == get_image_prompt_string(
        *grid_of(plan.recipe),
        16,
        fake_token_around_image="<fake_token_around_image>",
        image_token="<image>",
        global_image_token="<global-img>",
    )


def picture_of(size: Size) -> Image.Image:
    noise = np.random.default_rng(7).integers(0, 256, (size.height, size.width, 3), dtype=np.uint8)
    return Image.fromarray(noise)


def grid_of(recipe: RenderRecipe) -> tuple[int, int]:
    """Rows and columns of a cut picture, of one that is not cut none."""
    tiles = recipe.views[0]
    return (tiles.rows, tiles.columns) if len(recipe.views) > 1 else (0, 0)


def tiles_of(picture: Image.Image, recipe: RenderRecipe) -> Pixels:
    tiles = np.frombuffer(execute(picture, recipe), np.uint8)
    return tiles.reshape(recipe.num_tiles, recipe.tile.height, recipe.tile.width, 3)


@pytest.mark.parametrize("kind", [Idefics3ImageProcessorPil, SmolVLMImageProcessorPil])
@pytest.mark.parametrize(
    ("family", "size"),
    [
        (DEMO, Size(256, 256)),
        (DEMO, Size(333, 222)),
        (DEMO, Size(90, 211)),
        (DEMO, Size(1, 1)),
        (DEMO, Size(1, 900)),
        (DEMO, Size(900, 1)),
        (DEMO, Size(700, 3)),
        (SMOLVLM_256M, Size(640, 480)),
        (FAMILIES["edge under the tile"], Size(500, 300)),
    ],
)
@pytest.mark.parametrize("split", [True, False])
def test_recipe_gives_the_processors_pixels(kind: Any, family: Idefics3Family, size: Size, split: bool) -> None:
    picture = picture_of(size)
    processor = kind(
        size={"longest_edge": family.longest_edge},
        max_image_size={"longest_edge": family.tile_side},
        do_image_splitting=split,
        do_rescale=False,
        do_normalize=False,
    )
    # The processor takes a picture of height 1 or 3 for one whose channels come first, unless it is told.
    output = processor(picture, input_data_format="channels_last")
    expected = np.asarray(output["pixel_values"])[0].transpose(0, 2, 3, 1)
    plan = planned(family, size, Detail.HIGH if split else Detail.LOW)
    np.testing.assert_array_equal(tiles_of(picture, plan.recipe), expected)
