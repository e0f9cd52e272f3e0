"""Tiles against MllamaImageProcessor."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.image_utils import SizeDict

from opsin.core.conversation import Detail
from opsin.vision.mllama import MllamaFamily, from_files
from opsin.vision.plan import Size
from tests.unit.vision.oracles import files, of_transformers, over_sizes, pixels_without_memory

MllamaImageProcessorPil = of_transformers("mllama.image_processing_pil_mllama").MllamaImageProcessorPil
get_image_size_fit_to_canvas = of_transformers("mllama.image_processing_pil_mllama").get_image_size_fit_to_canvas
get_optimal_tiled_canvas = of_transformers("mllama.image_processing_pil_mllama").get_optimal_tiled_canvas

PROCESSORS = {
    "Llama 3.2 Vision": MllamaImageProcessorPil(size={"height": 560, "width": 560}),
    "nine small tiles": MllamaImageProcessorPil(size={"height": 100, "width": 100}, max_image_tiles=9),
}


def family_of(processor: Any) -> MllamaFamily:
    return from_files(files("mllama", processor, config='{"vision_config": {"patch_size": 14}}'))


@pytest.mark.parametrize("processor", PROCESSORS.values(), ids=PROCESSORS)
@over_sizes()
def test_tiles_are_the_processors(processor: Any, width: int, height: int) -> None:
    assert isinstance(processor.size, SizeDict)
    side = processor.size.height
    assert side is not None
    canvas_height, canvas_width = get_optimal_tiled_canvas(height, width, processor.max_image_tiles, side)
    fitted = get_image_size_fit_to_canvas(height, width, canvas_height, canvas_width, side)
    count = family_of(processor).count(Size(width, height))
    assert count.num_tiles == canvas_height * canvas_width // side**2
    assert (count.used.height, count.used.width) == fitted


def test_the_prompt_holds_one_marker_and_the_features_are_beside_it() -> None:
    processor = PROCESSORS["Llama 3.2 Vision"]
    made = processor(pixels_without_memory(Size(640, 480)), input_data_format="channels_first")
    count = family_of(processor).count(Size(640, 480))
    assert made["num_tiles"] == [[2]] == [[count.num_tiles]]
    assert (count.image_tokens, count.marker_tokens, count.cross_attention_tokens) == (0, 1, 2 * 1601)


def test_low_is_one_tile() -> None:
    family = family_of(PROCESSORS["Llama 3.2 Vision"])
    assert family.count(Size(4032, 3024), Detail.LOW).cross_attention_tokens == 1601
    assert family.count(Size(4032, 3024), Detail.HIGH).cross_attention_tokens == 4 * 1601
