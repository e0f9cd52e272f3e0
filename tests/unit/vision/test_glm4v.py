"""Counts against GLM-4.1V's and GLM-4.6V's image processors."""

from __future__ import annotations

from typing import Any

import pytest

from opsin.core.conversation import Detail
from opsin.core.errors import MediaError
from opsin.vision.glm4v import from_files
from opsin.vision.plan import Size
from tests.unit.vision.oracles import files, of_transformers, over_sizes, pixels_without_memory

Glm4vImageProcessorPil = of_transformers("glm4v.image_processing_pil_glm4v").Glm4vImageProcessorPil
Glm46VImageProcessorPil = of_transformers("glm46v.image_processing_pil_glm46v").Glm46VImageProcessorPil

PROCESSORS: dict[str, Any] = {
    "GLM-4.1V": Glm4vImageProcessorPil(),
    "GLM-4.6V": Glm46VImageProcessorPil(),
    "a lower cap": Glm4vImageProcessorPil(size={"shortest_edge": 12544, "longest_edge": 9633792}),
    "one frame, odd bounds": Glm4vImageProcessorPil(
        temporal_patch_size=1, patch_size=12, size={"shortest_edge": 70001, "longest_edge": 99999}
    ),
}


@pytest.mark.parametrize("processor", PROCESSORS.values(), ids=PROCESSORS)
@over_sizes((23, 1806), (2442, 19), (10, 355))
def test_count_is_the_processors(processor: Any, width: int, height: int) -> None:
    family = from_files(files("glm4v", processor))
    try:
        patches = processor.get_number_of_image_patches(height, width)
    except ValueError:
        with pytest.raises(MediaError, match=f"{width} x {height} pixels; this model takes one side up to 200 times"):
            family.count(Size(width, height))
        return
    count = family.count(Size(width, height))
    assert count.image_tokens == patches // family.merge_size**2
    assert (count.num_tiles, count.marker_tokens) == (1, 2)


@pytest.mark.parametrize("size", [Size(3, 190), Size(57, 31), Size(640, 480)])
def test_used_is_what_the_processor_makes(size: Size) -> None:
    processor = PROCESSORS["GLM-4.1V"]
    made = processor(pixels_without_memory(size), input_data_format="channels_first")
    _, rows, columns = made["image_grid_thw"][0]
    assert from_files(files("glm4v", processor)).count(size).used == Size(columns * 14, rows * 14)


def test_low_is_512_pixels_square_of_one_frame() -> None:
    family = from_files(files("glm4v", PROCESSORS["GLM-4.1V"]))
    assert family.count(Size(4032, 3024), Detail.LOW).image_tokens == 315
    assert family.count(Size(4032, 3024), Detail.HIGH).image_tokens == 7500
