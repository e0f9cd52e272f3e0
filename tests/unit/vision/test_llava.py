"""Counts against LlavaProcessor."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import LlavaProcessor

from opsin.core.conversation import Detail
from opsin.core.errors import ConfigError
from opsin.vision.llava import from_files
from opsin.vision.pixtral import PixtralFamily
from opsin.vision.plan import Size
from tests.unit.vision.oracles import files, of_transformers, over_sizes, pixels_without_memory, tokenizer

LlavaImageProcessorPil = of_transformers("llava.image_processing_pil_llava").LlavaImageProcessorPil
SiglipImageProcessorPil = of_transformers("siglip.image_processing_pil_siglip").SiglipImageProcessorPil

CLIP = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}


def processor_of(images: Any, strategy: str, extra: int) -> LlavaProcessor:
    return LlavaProcessor(
        images, tokenizer(), patch_size=14, vision_feature_select_strategy=strategy, num_additional_image_tokens=extra
    )


PROCESSORS = {
    "LLaVA-1.5": (processor_of(LlavaImageProcessorPil(**CLIP), "default", 1), 576),
    "with its class token": (processor_of(LlavaImageProcessorPil(**CLIP), "full", 1), 577),
    "NeXT-Interleave": (processor_of(SiglipImageProcessorPil(size={"height": 384, "width": 384}), "full", 0), 729),
}


def said(processor: LlavaProcessor) -> str:
    return (
        f'{{"patch_size": {processor.patch_size}, "num_additional_image_tokens": '
        f'{processor.num_additional_image_tokens}, "vision_feature_select_strategy": '
        f'"{processor.vision_feature_select_strategy}"}}'
    )


@pytest.mark.parametrize(("processor", "tokens"), PROCESSORS.values(), ids=PROCESSORS)
@pytest.mark.parametrize("size", [Size(1, 9), Size(640, 480), Size(300, 1000)])
def test_count_is_what_the_processor_expands(processor: Any, tokens: int, size: Size) -> None:
    made = processor(
        images=[pixels_without_memory(size)], text="<image>", images_kwargs={"input_data_format": "channels_first"}
    )
    count = from_files(files("llava", processor.image_processor, said(processor))).count(size)
    assert count.image_tokens == tokens == sum(token == processor.image_token_id for token in made["input_ids"][0])
    assert made["pixel_values"][0].shape[1:] == (count.used.height, count.used.width)
    assert (count.num_tiles, count.marker_tokens) == (1, 0)


@over_sizes(max_examples=20)
def test_neither_size_nor_detail_matters(width: int, height: int) -> None:
    family = from_files(files("llava", LlavaImageProcessorPil(**CLIP)))
    assert {family.count(Size(width, height), detail).image_tokens for detail in Detail} == {576}
    assert family.with_max_pixels(1) == family
    assert not family.caps()


def test_pixtral_hides_behind_the_same_model_type() -> None:
    family = from_files(files("llava", config='{"vision_config": {"model_type": "pixtral", "patch_size": 16}}'))
    assert family == PixtralFamily(name="llava")


def test_views_without_a_fixed_size_are_refused() -> None:
    images = LlavaImageProcessorPil(size={"shortest_edge": 336}, do_center_crop=False)
    with pytest.raises(ConfigError, match="size gives no height and width"):
        from_files(files("llava", images))
