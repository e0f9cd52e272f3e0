"""Canvases and prompts against Llama 4's processors, whose pixel work is torchvision's and not run here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.image_utils import SizeDict

from opsin.core.conversation import Detail
from opsin.media.render import execute
from opsin.models.files import Document
from opsin.models.vision_files import VisionFiles
from opsin.vision.llama4 import Llama4Family, from_files
from opsin.vision.plan import Size
from tests.unit.vision.oracles import files, of_transformers, over_sizes, without_init

Llama4Processor = of_transformers("llama4.processing_llama4").Llama4Processor

PROCESSING = of_transformers("llama4.image_processing_llama4")
PROCESSOR = without_init(Llama4Processor)
FAMILIES = {
    "Llama 4": Llama4Family(),
    "to the largest canvas": Llama4Family(to_largest_canvas=True),
    "five tiles": Llama4Family(max_tiles=5),
}


def canvas_of_the_processor(family: Llama4Family, size: Size) -> Any:
    tile = SizeDict(height=family.tile_side, width=family.tile_side)
    canvases = PROCESSING.find_supported_resolutions(max_num_chunks=family.max_tiles, patch_size=tile)
    return PROCESSING.get_best_fit((size.height, size.width), torch.tensor(canvases), family.to_largest_canvas)


def scaled_by_the_processor(family: Llama4Family, size: Size, canvas: Any) -> tuple[int, int]:
    """As ``_preprocess`` has it, between choosing a canvas and resizing."""
    if not family.to_largest_canvas:
        sides = max(size.height, family.tile_side), max(size.width, family.tile_side)
        canvas = min(sides[0], canvas[0]), min(sides[1], canvas[1])
    height, width = PROCESSING.get_max_res_without_distortion((size.height, size.width), canvas)
    return max(int(height), 1), max(int(width), 1)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@over_sizes((2415, 6440), (4324, 7360), (7093, 2422), (304, 57), (55, 77))
def test_count_is_the_processors(family: Llama4Family, width: int, height: int) -> None:
    size = Size(width, height)
    canvas = canvas_of_the_processor(family, size)
    count = family.count(size)
    rows, columns = int(canvas[0]) // 336, int(canvas[1]) // 336
    text = PROCESSOR._prompt_split_image((rows, columns), 144)
    assert count.image_tokens == text.count("<|patch|>")
    assert count.marker_tokens == text.count("<|") - text.count("<|patch|>")
    assert count.num_tiles == rows * columns + (rows * columns > 1)
    assert (count.used.height, count.used.width) == scaled_by_the_processor(family, size, canvas)


def test_low_is_one_tile() -> None:
    count = Llama4Family().count(Size(4032, 3024), Detail.LOW)
    assert (count.num_tiles, count.image_tokens, count.marker_tokens) == (1, 144, 3)
    assert Llama4Family().count(Size(4032, 3024), Detail.ORIGINAL).num_tiles == 13


def test_parameters_are_the_checkpoints() -> None:
    said = VisionFiles(
        model_type="llama4",
        config=Document("config.json", b"{}"),
        image_processor=Document(
            "preprocessor_config.json", b'{"size": {"height": 448, "width": 448}, "max_patches": 4}'
        ),
        processor=Document("processor_config.json", b'{"patch_size": 14, "pixel_shuffle_ratio": 0.5}'),
    )
    assert from_files(said) == Llama4Family(tile_side=448, tokens_per_tile=256, max_tiles=4)
    assert from_files(files("llama4", None)) == Llama4Family()


@pytest.mark.parametrize("size", [Size(1, 1), Size(640, 480), Size(300, 1000), Size(1300, 900)])
def test_recipe_makes_the_processors_tiles_within_a_level(size: Size) -> None:
    """With torch's resize, which torchvision calls; there is no PIL backend to be equal to."""
    noise = np.random.default_rng(7).integers(0, 256, (size.height, size.width, 3), dtype=np.uint8)
    family = Llama4Family()
    recipe = family.recipe(size)
    assert recipe is not None
    recipe.check(size)
    assert recipe.num_tiles == family.count(size).num_tiles
    pixels = torch.from_numpy(noise).permute(2, 0, 1)[None]
    used, (tiles, *overview) = family.count(size).used, recipe.views
    canvas = torch.zeros((1, 3, tiles.rows * 336, tiles.columns * 336), dtype=torch.uint8)
    canvas[:, :, : used.height, : used.width] = by_torch(pixels, used)
    expected = [*canvas[0].unfold(1, 336, 336).unfold(2, 336, 336).permute(1, 2, 3, 4, 0).reshape(-1, 336, 336, 3)]
    expected += [by_torch(pixels, Size(336, 336))[0].permute(1, 2, 0) for _ in overview]
    made = np.frombuffer(execute(Image.fromarray(noise), recipe), np.uint8).reshape(-1, 336, 336, 3)
    assert np.abs(torch.stack(expected).numpy().astype(int) - made).max() <= 1


def by_torch(pixels: torch.Tensor, size: Size) -> torch.Tensor:
    shape = (size.height, size.width)
    if pixels.shape[-2:] == shape:
        return pixels
    return torch.nn.functional.interpolate(pixels, shape, mode="bilinear", antialias=True)
