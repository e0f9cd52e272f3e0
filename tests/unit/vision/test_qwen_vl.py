"""Counts against Qwen2VLImageProcessor, which serves Qwen2-VL to Qwen3.5."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from opsin.core.conversation import Detail
from opsin.core.errors import ConfigError, MediaError
from opsin.models.files import Document
from opsin.vision.plan import Size
from opsin.vision.qwen_vl import QwenVLFamily, from_files
from tests.unit.vision.oracles import files, of_transformers, over_sizes, pixels_without_memory

Qwen2VLImageProcessorPil = of_transformers("qwen2_vl.image_processing_pil_qwen2_vl").Qwen2VLImageProcessorPil

PROCESSORS = {
    "class defaults": Qwen2VLImageProcessorPil(),
    "Qwen2.5-VL": Qwen2VLImageProcessorPil(min_pixels=3136, max_pixels=12845056),
    "Qwen3-VL": Qwen2VLImageProcessorPil(patch_size=16, size={"shortest_edge": 65536, "longest_edge": 16777216}),
    "odd bounds": Qwen2VLImageProcessorPil(patch_size=12, merge_size=3, min_pixels=70001, max_pixels=99999),
}


def family_of(processor: Any) -> QwenVLFamily:
    return from_files(files("qwen2_vl", processor))


@pytest.mark.parametrize("processor", PROCESSORS.values(), ids=PROCESSORS)
@over_sizes()
def test_count_is_the_processors(processor: Any, width: int, height: int) -> None:
    family = family_of(processor)
    try:
        patches = processor.get_number_of_image_patches(height, width)
    except ValueError:
        with pytest.raises(MediaError, match=f"{width} x {height} pixels; this model takes one side up to 200 times"):
            family.count(Size(width, height))
        return
    count = family.count(Size(width, height))
    assert count.image_tokens == patches // family.merge_size**2
    assert count.used.area == patches * family.patch_size**2
    assert (count.num_tiles, count.marker_tokens, count.exact) == (1, 2, True)


@pytest.mark.parametrize("size", [Size(1, 190), Size(57, 31), Size(640, 480), Size(300, 1000)])
def test_used_is_what_the_processor_makes(size: Size) -> None:
    processor = PROCESSORS["class defaults"]
    made = processor(pixels_without_memory(size), input_data_format="channels_first")
    _, rows, columns = made["image_grid_thw"][0]
    assert family_of(processor).count(size).used == Size(columns * 14, rows * 14)


def test_low_is_512_pixels_square_and_the_rest_is_the_checkpoints_cap() -> None:
    family = family_of(PROCESSORS["Qwen2.5-VL"])
    size = Size(4032, 3024)
    low = family.count(size, Detail.LOW)
    assert low == replace(family, max_pixels=512 * 512).count(size)
    assert (low.used, low.image_tokens) == (Size(588, 420), 315)
    assert {family.count(size, detail).image_tokens for detail in Detail if detail is not Detail.LOW} == {15552}


def test_a_cap_only_lowers_and_takes_the_lower_bound_along() -> None:
    family = QwenVLFamily(min_pixels=65536, max_pixels=1003520)
    assert family.with_max_pixels(10**9) == family
    assert family.with_max_pixels(28 * 28 * 4).count(Size(500, 500)).image_tokens == 4
    assert family.with_max_pixels(28 * 28 * 4).count(Size(40, 40)).image_tokens == 4
    assert family.with_max_pixels(1).count(Size(500, 500)).image_tokens == 1


@pytest.mark.parametrize(
    ("excerpt", "message"),
    [
        ('{"patch_size": 0}', r"preprocessor_config\.json: patch_size is 0"),
        ('{"size": {"height": 9}}', r"preprocessor_config\.json: size\.shortest_edge is None"),
        ('{"merge_size": "2"}', r"preprocessor_config\.json: field merge_size has the wrong type"),
    ],
)
def test_values_without_sense_are_refused_by_name(excerpt: str, message: str) -> None:
    broken = replace(files("qwen2_vl"), image_processor=Document("preprocessor_config.json", excerpt.encode()))
    with pytest.raises(ConfigError, match=message):
        from_files(broken)
