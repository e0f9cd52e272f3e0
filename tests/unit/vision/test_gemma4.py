"""Counts against Gemma4ImageProcessor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opsin.core.conversation import Detail
from opsin.core.errors import ConfigError
from opsin.models.files import Document
from opsin.vision.gemma4 import BUDGETS, Gemma4Family, from_files
from opsin.vision.plan import Size
from tests.unit.vision.oracles import files, of_transformers, over_sizes, pixels_without_memory

gemma4 = of_transformers("gemma4.image_processing_pil_gemma4")


@pytest.mark.parametrize("budget", BUDGETS)
@over_sizes()
def test_count_is_the_processors(budget: int, width: int, height: int) -> None:
    family = from_files(files("gemma4", gemma4.Gemma4ImageProcessorPil(max_soft_tokens=budget)))
    count = family.count(Size(width, height))
    used = gemma4.get_aspect_ratio_preserving_size(height, width, 16, budget * 9, 3)
    assert (count.used.height, count.used.width) == used
    assert count.image_tokens == used[0] // 16 * (used[1] // 16) // 9 <= budget
    assert count.marker_tokens == 2


@pytest.mark.parametrize("size", [Size(1, 190), Size(640, 480)])
def test_the_processor_itself_says_the_same(size: Size) -> None:
    made = gemma4.Gemma4ImageProcessorPil()(pixels_without_memory(size), input_data_format="channels_first")
    assert made["num_soft_tokens_per_image"] == [Gemma4Family().count(size).image_tokens]


def test_detail_chooses_among_the_budgets() -> None:
    family = Gemma4Family()
    square = Size(4096, 4096)
    assert [family.count(square, detail).image_tokens for detail in Detail] == [256, 64, 1089, 1089]


def test_a_cap_leads_down_to_a_budget_that_the_processor_accepts() -> None:
    lowered = Gemma4Family().with_max_pixels(200 * 48 * 48)
    assert (lowered.budget, lowered.max_budget) == (140, 140)
    assert Gemma4Family().with_max_pixels(1).max_budget == 70
    assert Gemma4Family().with_max_pixels(600 * 48 * 48) == Gemma4Family(max_budget=560)


def test_a_budget_that_no_processor_accepts_is_refused() -> None:
    said = replace(files("gemma4"), image_processor=Document("preprocessor_config.json", b'{"max_soft_tokens": 300}'))
    with pytest.raises(ConfigError, match="max_soft_tokens is 300, supported are"):
        from_files(said)
