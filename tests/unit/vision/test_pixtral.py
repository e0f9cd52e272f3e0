"""Counts against Pixtral's processors, which serve Mistral Small 3.x too."""

from __future__ import annotations

from typing import Any

import pytest

from opsin.core.conversation import Detail
from opsin.core.errors import ConfigError, MediaError
from opsin.vision.pixtral import PixtralFamily, from_files
from opsin.vision.plan import Size
from tests.unit.vision.oracles import files, of_transformers, over_sizes, pixels_without_memory, without_init

PixtralImageProcessorPil = of_transformers("pixtral.image_processing_pil_pixtral").PixtralImageProcessorPil
get_resize_output_image_size = of_transformers("pixtral.image_processing_pil_pixtral").get_resize_output_image_size

PROCESSING = of_transformers("pixtral.processing_pixtral")
FAMILIES = {
    "Pixtral-12B": (
        PixtralImageProcessorPil(), '{"patch_size": 16, "spatial_merge_size": 1}', PixtralFamily(name="mistral3")
    ),
    "Mistral Small 3": (
        PixtralImageProcessorPil(size={"longest_edge": 1540}, patch_size={"height": 14, "width": 14}),
        '{"patch_size": 14, "spatial_merge_size": 2}',
        PixtralFamily(name="mistral3", longest_edge=1540, factor=28),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("images", "said", "expected"), FAMILIES.values(), ids=FAMILIES)
@over_sizes((6149, 7861), (1467, 5507), (7861, 6149))
def test_count_is_the_processors(images: Any, said: str, expected: PixtralFamily, width: int, height: int) -> None:
    family = from_files(files("mistral3", images, said))
    assert family == expected
    size = Size(width, height)
    edge, factor = family.longest_edge, family.factor
    resized = get_resize_output_image_size(pixels_without_memory(size), edge, factor, "channels_first")
    if 0 in resized:
        with pytest.raises(MediaError, match="has no row of pixels left"):
            family.count(size)
        return
    processor = without_init(
        PROCESSING.PixtralProcessor,
        patch_size=factor, spatial_merge_size=1, image_token="I", image_break_token="B", image_end_token="E",
    )  # fmt: skip
    text = processor.replace_image_token({"image_sizes": [resized]}, 0)
    count = family.count(size)
    assert (count.used.height, count.used.width) == resized
    assert count.image_tokens == text.count("I")
    assert count.marker_tokens == text.count("B") + text.count("E")


def test_the_merge_of_a_checkpoint_without_processor_file_is_the_models() -> None:
    config = '{"spatial_merge_size": 2, "vision_config": {"patch_size": 14}}'
    images = PixtralImageProcessorPil(size={"longest_edge": 1540})
    assert from_files(files("mistral3", images, config=config)) == FAMILIES["Mistral Small 3"][2]


def test_low_is_512_pixels_on_the_longer_side() -> None:
    family = PixtralFamily()
    assert family.count(Size(4032, 3024), Detail.LOW).used == Size(512, 384)
    assert family.count(Size(4032, 3024), Detail.ORIGINAL) == family.count(Size(4032, 3024))


def test_another_kind_of_size_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"size\.longest_edge is missing"):
        from_files(files("mistral3", PixtralImageProcessorPil(size={"height": 512, "width": 512})))
