"""Counts against LlavaNextProcessor."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import LlavaNextProcessor

from opsin.core.conversation import Detail
from opsin.core.errors import ConfigError
from opsin.vision.llava_next import LlavaNextFamily, from_files
from opsin.vision.plan import Size
from tests.unit.vision.oracles import files, of_transformers, over_sizes, pixels_without_memory, tokenizer

processing = of_transformers("llava_next.image_processing_pil_llava_next")


def processor_of(pinpoints: list[list[int]] | None = None, strategy: str = "default", extra: int = 1) -> Any:
    values = {"image_grid_pinpoints": pinpoints} if pinpoints else {}
    images = processing.LlavaNextImageProcessorPil(
        size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336}, **values
    )
    return LlavaNextProcessor(
        images, tokenizer(), patch_size=14, vision_feature_select_strategy=strategy, num_additional_image_tokens=extra
    )


PROCESSORS = {
    "LLaVA-NeXT": processor_of(),
    "with its class token": processor_of(strategy="full"),
    "other canvases": processor_of([[1008, 672], [336, 1344], [1344, 336], [336, 336]]),
}


def family_of(processor: Any) -> LlavaNextFamily:
    said = (
        f'{{"patch_size": 14, "num_additional_image_tokens": {processor.num_additional_image_tokens}, '
        f'"vision_feature_select_strategy": "{processor.vision_feature_select_strategy}"}}'
    )
    return from_files(files("llava_next", processor.image_processor, said))


@pytest.mark.parametrize("processor", PROCESSORS.values(), ids=PROCESSORS)
@over_sizes()
def test_count_is_the_processors(processor: Any, width: int, height: int) -> None:
    counted = processor._get_num_multimodal_tokens(image_sizes=[(height, width)])
    size = Size(width, height)
    count = family_of(processor).count(size)
    assert [count.image_tokens] == counted["num_image_tokens"]
    assert count.marker_tokens == 0
    canvas = processing.select_best_resolution((height, width), processor.image_processor.image_grid_pinpoints)
    assert count.num_tiles == canvas[0] * canvas[1] // 336**2 + 1
    used = processing.get_patch_output_size(pixels_without_memory(size), canvas, "channels_first")
    assert (count.used.height, count.used.width) == used


@pytest.mark.parametrize("size", [Size(2, 9), Size(640, 480), Size(300, 1000)])
def test_tiles_are_those_that_the_processor_cuts(size: Size) -> None:
    processor = PROCESSORS["LLaVA-NeXT"]
    made = processor.image_processor(pixels_without_memory(size), input_data_format="channels_first")
    count = family_of(processor).count(size)
    assert len(made["pixel_values"][0]) == count.num_tiles


def test_low_takes_the_smallest_canvases() -> None:
    small = family_of(processor_of([[336, 672], [672, 336]]))
    family = family_of(PROCESSORS["LLaVA-NeXT"])
    for size in (Size(640, 480), Size(1024, 1024), Size(100, 900)):
        assert family.count(size, Detail.LOW) == small.count(size)
        assert family.count(size, Detail.ORIGINAL) == family.count(size, Detail.HIGH) == family.count(size)


def test_an_empty_list_of_canvases_is_refused() -> None:
    images = processing.LlavaNextImageProcessorPil(image_grid_pinpoints=[])
    with pytest.raises(ConfigError, match="image_grid_pinpoints is empty"):
        from_files(files("llava_next", images))
