"""Counts against Gemma3ImageProcessor, pan and scan included."""

from __future__ import annotations

from typing import Any

import pytest

from opsin.core.conversation import Detail
from opsin.vision.gemma3 import Gemma3Family, from_files
from opsin.vision.plan import Size
from tests.unit.vision.oracles import files, of_transformers, over_sizes, pixels_without_memory

Gemma3ImageProcessorPil = of_transformers("gemma3.image_processing_pil_gemma3").Gemma3ImageProcessorPil

PROCESSORS = {
    "Gemma 3": {"do_pan_and_scan": True},
    "many small crops": {
        "do_pan_and_scan": True,
        "pan_and_scan_min_crop_size": 60,
        "pan_and_scan_max_num_crops": 7,
        "pan_and_scan_min_ratio_to_activate": 1.7,
    },
}


def processor_of(**values: Any) -> Any:
    return Gemma3ImageProcessorPil(size={"height": 896, "width": 896}, **values)


@pytest.mark.parametrize("values", PROCESSORS.values(), ids=PROCESSORS)
@over_sizes((2500, 1000), (1000, 4500), (750, 300))
def test_crops_are_the_processors(values: dict[str, Any], width: int, height: int) -> None:
    size = Size(width, height)
    processor = processor_of(**values)
    crops = processor.pan_and_scan(
        pixels_without_memory(size),
        values.get("pan_and_scan_min_crop_size", 256),
        values.get("pan_and_scan_max_num_crops", 4),
        values.get("pan_and_scan_min_ratio_to_activate", 1.2),
    )
    count = from_files(files("gemma3", processor)).count(size)
    assert count.num_tiles == 1 + len(crops)
    assert (count.image_tokens, count.marker_tokens) == (256 * count.num_tiles, 2 * count.num_tiles)


@pytest.mark.parametrize(
    ("detail", "num_views"), [(Detail.LOW, 1), (Detail.AUTO, 1), (Detail.HIGH, 3), (Detail.ORIGINAL, 3)]
)
def test_only_high_pans_where_the_checkpoint_does_not(detail: Detail, num_views: int) -> None:
    family = from_files(files("gemma3", processor_of(), '{"image_seq_length": 256}'))
    assert family == Gemma3Family()
    assert family.count(Size(1920, 1080), detail).num_tiles == num_views


def test_a_cap_takes_pieces_away() -> None:
    family = Gemma3Family()
    views = [family.with_max_pixels(cap).count(Size(2000, 300), Detail.HIGH).num_tiles for cap in family.caps()]
    assert views == [1, 3, 4, 5]
