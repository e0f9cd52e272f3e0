"""The first Molmo's grid against the second's processor; its tokens by hand, as vLLM's code counts them."""

from __future__ import annotations

import pytest

from opsin.core.conversation import Detail
from opsin.vision.molmo import MolmoFamily, from_files
from opsin.vision.plan import Size
from tests.unit.vision.oracles import files, of_transformers, over_sizes

select_tiling = of_transformers("molmo2.image_processing_molmo2").select_tiling

MARGIN = 8 * 14
WINDOW = 336 - MARGIN


@pytest.mark.parametrize("max_crops", [12, 5])
@over_sizes()
def test_grid_is_the_processors(max_crops: int, width: int, height: int) -> None:
    rows, columns = select_tiling(height - MARGIN, width - MARGIN, WINDOW, max_crops)
    count = MolmoFamily(max_crops=max_crops).count(Size(width, height))
    assert count.used == Size(columns * WINDOW + MARGIN, rows * WINDOW + MARGIN)
    assert count.num_tiles == rows * columns + 1


@pytest.mark.parametrize(
    ("size", "image_tokens", "marker_tokens"),
    [
        # One crop: 12 x 12 tokens, as in the overview; a start, an end and a marker per row for each of the two.
        (Size(336, 336), 144 + 144, 2 * 14),
        # 2 x 2 crops of 24 patches overlap in 8: 40 patches, 20 tokens a side.
        (Size(512, 512), 144 + 20 * 20, 14 + 22),
        # 3 x 3: 56 patches.
        (Size(1024, 1024), 144 + 28 * 28, 14 + 30),
    ],
)
def test_tokens_by_hand(size: Size, image_tokens: int, marker_tokens: int) -> None:
    count = MolmoFamily().count(size)
    assert (count.image_tokens, count.marker_tokens) == (image_tokens, marker_tokens)


def test_low_is_one_crop() -> None:
    assert MolmoFamily().count(Size(4032, 3024), Detail.LOW) == MolmoFamily(max_crops=1).count(Size(4032, 3024))


def test_parameters_default_to_the_7b_models() -> None:
    assert from_files(files("molmo", None)) == MolmoFamily()
