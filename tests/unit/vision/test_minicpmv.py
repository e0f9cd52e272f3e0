"""Grids, sizes and prompts against MiniCPMV4_6's processors, whose grid the earlier models share."""

from __future__ import annotations

from typing import Any

import pytest

from opsin.core.conversation import Detail
from opsin.core.errors import ConfigError
from opsin.vision.minicpmv import MiniCPMVFamily, from_block_files, from_files
from opsin.vision.plan import Size
from tests.unit.vision.oracles import files, of_transformers, over_sizes, pixels_without_memory, without_init

minicpmv4_6 = of_transformers("minicpmv4_6.image_processing_pil_minicpmv4_6")
MiniCPMV4_6Processor = of_transformers("minicpmv4_6.processing_minicpmv4_6").MiniCPMV4_6Processor

PROCESSORS = {
    "MiniCPM-V 4.6": minicpmv4_6.MiniCPMV4_6ImageProcessorPil(),
    "finer tokens": minicpmv4_6.MiniCPMV4_6ImageProcessorPil(downsample_mode="4x"),
    "four small slices": minicpmv4_6.MiniCPMV4_6ImageProcessorPil(max_slice_nums=4, scale_resolution=200),
    "no slices": minicpmv4_6.MiniCPMV4_6ImageProcessorPil(slice_mode=False),
}


def sizes_of_the_processor(images: Any, size: Size) -> tuple[Any, tuple[int, int], tuple[int, int] | None]:
    """Rows and columns, the overview's and the slices' height and width, as ``_preprocess`` has them."""
    shape = (size.height, size.width)
    scale, patch, mode = images.scale_resolution, images.patch_size, images.downsample_mode
    grid = images.get_sliced_grid(shape, images.max_slice_nums, scale) if images.slice_mode else None
    overview = images.find_best_resize(shape, scale, patch, downsample_mode=mode, allow_upscale=grid is None)
    if grid is None:
        return None, overview, None
    return grid, overview, images.get_refine_size(shape, grid, scale, patch, downsample_mode=mode, allow_upscale=True)


@pytest.mark.parametrize("images", PROCESSORS.values(), ids=PROCESSORS)
@over_sizes()
def test_count_is_the_processors(images: Any, width: int, height: int) -> None:
    size = Size(width, height)
    count = from_block_files(files("minicpmv4_6", images)).count(size)
    grid, overview, slices = sizes_of_the_processor(images, size)
    used = slices or overview
    factor = images.patch_size * (2 if images.downsample_mode == "4x" else 4)
    assert (count.used.height, count.used.width) == used
    assert count.num_tiles == 1 + (grid[0] * grid[1] if grid else 0)
    in_slices = slices[0] * slices[1] if slices else 0
    assert count.image_tokens == (overview[0] * overview[1] + in_slices) // factor**2


@pytest.mark.parametrize("size", [Size(5, 90), Size(640, 480), Size(500, 1500)])
def test_markers_are_those_of_the_processors_text(size: Size) -> None:
    images = PROCESSORS["MiniCPM-V 4.6"]
    processor = without_init(
        MiniCPMV4_6Processor,
        slice_mode=True, image_token="T", image_start_token="<", image_end_token=">",
        slice_start_token="[", slice_end_token="]", image_id_start_token="{", image_id_end_token="}",
    )  # fmt: skip
    made = images(pixels_without_memory(size), input_data_format="channels_first", return_tensors="np")
    text = processor.replace_image_token(made, 0, image_token_divisor=16)
    [labelled] = processor._prepend_local_ids(["T"], [text], "T")
    count = from_block_files(files("minicpmv4_6", images)).count(size)
    assert labelled.count("T") == count.image_tokens
    assert len(labelled) == count.prompt_tokens


@over_sizes()
def test_the_earlier_models_have_the_same_grid_and_64_tokens_a_view(width: int, height: int) -> None:
    family = from_files(files("minicpmv", PROCESSORS["MiniCPM-V 4.6"]))
    assert family == MiniCPMVFamily()
    count = family.count(Size(width, height))
    assert (
        count.num_tiles == from_block_files(files("", PROCESSORS["MiniCPM-V 4.6"])).count(Size(width, height)).num_tiles
    )
    assert count.image_tokens == 64 * count.num_tiles


def test_low_is_the_overview_alone() -> None:
    count = MiniCPMVFamily().count(Size(4032, 3024), Detail.LOW)
    assert (count.num_tiles, count.image_tokens, count.marker_tokens) == (1, 64, 5)
    assert MiniCPMVFamily(has_label=False).count(Size(9, 9)).marker_tokens == 2


def test_another_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="downsample_mode is 9x"):
        from_block_files(files("minicpmv4_6", minicpmv4_6.MiniCPMV4_6ImageProcessorPil(downsample_mode="9x")))
