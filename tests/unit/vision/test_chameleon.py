"""Counts against ChameleonProcessor."""

from __future__ import annotations

from opsin.core.conversation import Detail
from opsin.vision.chameleon import ChameleonFamily, from_files
from opsin.vision.plan import Size
from tests.unit.vision.oracles import files, of_transformers, over_sizes, pixels_without_memory, without_init

ChameleonImageProcessorPil = of_transformers("chameleon.image_processing_pil_chameleon").ChameleonImageProcessorPil
ChameleonProcessor = of_transformers("chameleon.processing_chameleon").ChameleonProcessor


@over_sizes(max_examples=20)
def test_count_is_the_processors_whatever_the_size(width: int, height: int) -> None:
    processor = without_init(
        ChameleonProcessor, image_seq_length=1024, image_token="I", image_start_token="<", image_end_token=">"
    )
    text = processor.replace_image_token({}, 0)
    for detail in Detail:
        count = from_files(files("chameleon")).count(Size(width, height), detail)
        assert (count.image_tokens, count.prompt_tokens) == (text.count("I"), len(text))
    assert not ChameleonFamily().caps()
    assert ChameleonFamily().with_max_pixels(1) == ChameleonFamily()


def test_used_is_the_view_that_the_processor_makes() -> None:
    made = ChameleonImageProcessorPil()(pixels_without_memory(Size(700, 300)), input_data_format="channels_first")
    assert made["pixel_values"][0].shape[1:] == (512, 512)
