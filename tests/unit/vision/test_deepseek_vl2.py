"""DeepSeek-VL2: its canvas against Transformers' choice for LLaVA-NeXT, its tokens by hand."""

from __future__ import annotations

import pytest

from opsin.core.conversation import Detail
from opsin.core.errors import ConfigError
from opsin.models.facts import facts_of
from opsin.vision.deepseek_vl2 import DeepseekVL2Family, from_files
from opsin.vision.plan import Size
from tests.unit.vision.oracles import files, of_transformers, over_sizes

processing = of_transformers("llava_next.processing_llava_next")

FAMILY = DeepseekVL2Family()


@over_sizes()
def test_canvas_is_the_best_of_its_list(width: int, height: int) -> None:
    canvases = [(canvas.height, canvas.width) for canvas in FAMILY.canvases]
    rows, columns = (side // 384 for side in processing.select_best_resolution((height, width), canvases))
    count = FAMILY.count(Size(width, height))
    assert count.num_tiles == rows * columns + 1
    # An overview of 14 rows and their newlines, a separator, and rows of tiles with one newline per row of tokens.
    assert count.image_tokens == 14 * 15 + 1 + 14 * rows * (14 * columns + 1)


@pytest.mark.parametrize(("num_pictures", "image_tokens"), [(1, 2017), (2, 2017), (3, 421)])
def test_three_pictures_are_not_cut(num_pictures: int, image_tokens: int) -> None:
    assert FAMILY.count(Size(1024, 1024), num_pictures=num_pictures).image_tokens == image_tokens


def test_low_does_not_cut() -> None:
    assert FAMILY.count(Size(4032, 3024), Detail.LOW).image_tokens == 421
    assert FAMILY.count(Size(4032, 3024), Detail.HIGH).image_tokens == 2017


def test_parameters_are_the_checkpoints() -> None:
    facts = facts_of("deepseek-ai/deepseek-vl2-small")
    assert facts is not None
    assert from_files(facts.vision) == FAMILY
    assert from_files(files("deepseek_vl_v2")) == FAMILY
    with pytest.raises(ConfigError, match="candidate_resolutions is empty"):
        from_files(files("deepseek_vl_v2", processor='{"candidate_resolutions": []}'))
