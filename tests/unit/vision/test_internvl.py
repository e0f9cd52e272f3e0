"""Counts against InternVLProcessor and the image processor that it shares with GOT-OCR2."""

from __future__ import annotations

from typing import Any

import pytest

from opsin.core.conversation import Detail
from opsin.vision.internvl import InternVLFamily, from_chat_files, from_files
from opsin.vision.plan import Size
from tests.unit.vision.oracles import files, of_transformers, over_sizes, pixels_without_memory, without_init

GotOcr2ImageProcessorPil = of_transformers("got_ocr2.image_processing_pil_got_ocr2").GotOcr2ImageProcessorPil
InternVLProcessor = of_transformers("internvl.processing_internvl").InternVLProcessor

PROCESSOR = without_init(
    InternVLProcessor, image_seq_length=256, start_image_token="<", end_image_token=">", image_token="I"
)
IMAGES = {
    "InternVL3": {},
    "six tiles at most": {"max_patches": 6},
    "three to seven tiles": {"min_patches": 3, "max_patches": 7},
    "never cut": {"max_patches": 1},
}


def images_of(**values: int) -> Any:
    return GotOcr2ImageProcessorPil(size={"height": 448, "width": 448}, **values)


def family_of(images: Any) -> InternVLFamily:
    return from_files(files("internvl", images, '{"image_seq_length": 256}'))


@pytest.mark.parametrize("values", IMAGES.values(), ids=IMAGES)
@over_sizes()
def test_count_is_the_processors(values: dict[str, int], width: int, height: int) -> None:
    images = images_of(**values)
    num_tiles = images.get_number_of_image_patches(height, width, PROCESSOR.images_kwargs)
    text = PROCESSOR.replace_image_token({"num_patches": [num_tiles]}, 0)
    count = family_of(images).count(Size(width, height))
    assert count.num_tiles == num_tiles
    assert (count.image_tokens, count.prompt_tokens) == (text.count("I"), len(text))


@pytest.mark.parametrize("size", [Size(2, 9), Size(640, 480), Size(300, 1000)])
def test_used_is_what_the_processor_cuts(size: Size) -> None:
    images = images_of()
    made = images(pixels_without_memory(size), input_data_format="channels_first", **PROCESSOR.images_kwargs)
    count = family_of(images).count(size)
    assert len(made["pixel_values"]) == count.num_tiles
    assert count.used.area == 448 * 448 * max(count.num_tiles - 1, 1)


def test_low_is_one_tile_and_high_cuts_whatever_the_default_is() -> None:
    size = Size(640, 480)
    assert InternVLFamily().count(size, Detail.LOW).image_tokens == 256
    assert InternVLFamily(crops=False).count(size).num_tiles == 1
    assert {InternVLFamily(crops=False).count(size, d).num_tiles for d in (Detail.HIGH, Detail.ORIGINAL)} == {13}


def test_the_hubs_own_layout_states_the_same_rule() -> None:
    config = '{"force_image_size": 448, "max_dynamic_patch": 12, "vision_config": {"patch_size": 14}}'
    family = from_chat_files(files("internvl_chat", config=config))
    assert family == InternVLFamily(name="internvl_chat")
    plain = from_chat_files(files("internvl_chat", config='{"use_thumbnail": false, "downsample_ratio": 0.25}'))
    assert plain.count(Size(640, 480)).num_tiles == 12
    assert plain.tokens_per_tile == 64
