"""Counts against LlavaOnevisionProcessor."""

from __future__ import annotations

from typing import Any

import pytest

from opsin.core.conversation import Detail
from opsin.core.errors import ConfigError
from opsin.vision.llava_onevision import LlavaOnevisionFamily, from_files
from opsin.vision.plan import Size
from tests.unit.vision.oracles import files, of_transformers, over_sizes, pixels_without_memory, without_init

processing = of_transformers("llava_onevision.processing_llava_onevision")
images = of_transformers("llava_onevision.image_processing_pil_llava_onevision")


def processor_of(*, tokens: int = 729, strategy: str = "full", aspect: str = "anyres_max_9", **values: Any) -> Any:
    return without_init(
        processing.LlavaOnevisionProcessor,
        image_processor=images.LlavaOnevisionImageProcessorPil(**values),
        image_token="<image>",
        num_image_tokens=tokens,
        vision_feature_select_strategy=strategy,
        vision_aspect_ratio=aspect,
    )


PROCESSORS = {
    "LLaVA-OneVision": processor_of(),
    "four views, another tower": processor_of(
        tokens=576,
        strategy="default",
        aspect="anyres_max_4",
        image_grid_pinpoints=[[384, 384], [768, 1536], [768, 768]],
    ),
}


def family_of(processor: Any) -> LlavaOnevisionFamily:
    said = (
        f'{{"num_image_tokens": {processor.num_image_tokens}, "vision_feature_select_strategy": '
        f'"{processor.vision_feature_select_strategy}", "vision_aspect_ratio": "{processor.vision_aspect_ratio}"}}'
    )
    return from_files(files("llava_onevision", processor.image_processor, said))


@pytest.mark.parametrize("name", PROCESSORS)
@over_sizes((700, 1922), (1869, 820))
def test_count_is_the_processors(name: str, width: int, height: int) -> None:
    processor = PROCESSORS[name]
    features = processor._get_number_of_features(height, width, 384, 384)
    features -= processor.vision_feature_select_strategy == "default"
    count = family_of(processor).count(Size(width, height))
    assert (count.image_tokens, count.marker_tokens) == (features, 0)


@pytest.mark.parametrize("num_pictures", [1, 2, 3])
@pytest.mark.parametrize("size", [Size(2, 9), Size(640, 480), Size(300, 1000)])
def test_pictures_in_company_are_one_view_each(size: Size, num_pictures: int) -> None:
    processor = PROCESSORS["LLaVA-OneVision"]
    made = processor.image_processor([[pixels_without_memory(size)] * num_pictures], input_data_format="channels_first")
    text = processor.replace_image_token(made, num_pictures - 1)
    count = family_of(processor).count(size, num_pictures=num_pictures)
    assert text == "<image>" * count.image_tokens
    assert len(made["pixel_values"][0]) == count.num_tiles


def test_low_is_one_view_and_its_newline() -> None:
    family = family_of(PROCESSORS["LLaVA-OneVision"])
    size = Size(4032, 3024)
    assert family.count(size, Detail.LOW) == family.count(size, num_pictures=2)
    assert family.count(size, Detail.LOW).image_tokens == 730
    assert family.count(size, Detail.HIGH) == family.count(size, Detail.ORIGINAL) == family.count(size)


def test_an_aspect_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="vision_aspect_ratio is anyres, supported is anyres_max_N"):
        family_of(processor_of(aspect="anyres"))
