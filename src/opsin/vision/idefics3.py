"""Idefics3 and SmolVLM: a picture is scaled to a longest edge, cut into square tiles, and shown once more as a whole.

Every tile becomes ``tokens_per_tile`` image tokens. The arithmetic, floating point included, is that of Transformers'
``image_processing_pil_idefics3.py`` and ``processing_idefics3.py``; SmolVLM's files hold the same rule and differ only
in that the tokenizer may rename the marker tokens. This module knows no pixels, no tokenizer and no files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from opsin.core.conversation import Detail
from opsin.vision.plan import RenderRecipe, Size, VisionPlan

MAX_EDGE = 4096
"""``MAX_IMAGE_SIZE`` of the processor: no side is ever longer, whatever the checkpoint asks for."""


@dataclass(frozen=True, slots=True)
class Markers:
    """Text of the tokens around a picture's image tokens; rows and columns count from 1."""

    fake: str = "<fake_token_around_image>"
    overview: str = "<global-img>"
    image: str = "<image>"

    def tile(self, row: int, column: int) -> str:
        """What opens one tile of a cut picture."""
        return f"{self.fake}<row_{row}_col_{column}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Idefics3Family:
    """The rule with one checkpoint's parameters.

    ``longest_edge`` and ``tile_side`` are pixels (``size.longest_edge`` and ``max_image_size.longest_edge`` of the
    processor); ``tokens_per_tile`` is its ``image_seq_len``.
    """

    name: str
    longest_edge: int
    tile_side: int
    tokens_per_tile: int
    do_image_splitting: bool
    markers: Markers = Markers()

    @property
    def image_token(self) -> str:
        """The placeholder that the chat template emits once per picture."""
        return self.markers.image

    def plan(self, size: Size, detail: Detail) -> VisionPlan:
        """The plan for an upright picture of ``size``; ``auto`` is the checkpoint's own default, ``low`` never cuts."""
        recipe = self._recipe(size, self._splits(detail))
        num_tiles = recipe.rows * recipe.columns + 1
        return VisionPlan(
            original=size,
            used=recipe.resizes[-1],
            num_tiles=num_tiles,
            image_tokens=num_tiles * self.tokens_per_tile,
            slot=self._slot(recipe.rows, recipe.columns),
            recipe=recipe,
        )

    def _splits(self, detail: Detail) -> bool:
        return self.do_image_splitting if detail is Detail.AUTO else detail is not Detail.LOW

    def _recipe(self, size: Size, split: bool) -> RenderRecipe:
        side = self.tile_side
        tile = Size(side, side)
        scaled = _below_upper_bound(_scaled_to_longest_edge(size, self.longest_edge), MAX_EDGE)
        fitted = _rounded_up_to_tiles(scaled, side) if split else tile
        # The processor decides by the fitted size, so a small `longest_edge` leaves one tile even when it splits.
        if fitted == tile:
            return RenderRecipe(resizes=(scaled, tile), tile=tile, rows=0, columns=0, overview=False)
        return RenderRecipe(
            resizes=(scaled, fitted),
            tile=tile,
            rows=fitted.height // side,
            columns=fitted.width // side,
            overview=True,
        )

    def _slot(self, rows: int, columns: int) -> str:
        markers = self.markers
        features = markers.image * self.tokens_per_tile
        overview = f"{markers.fake}{markers.overview}{features}{markers.fake}"
        if rows == 0:
            return overview
        lines = (
            "".join(markers.tile(row, column) + features for column in range(1, columns + 1)) + "\n"
            for row in range(1, rows + 1)
        )
        return "".join(lines) + "\n" + overview


def _scaled_to_longest_edge(size: Size, edge: int) -> Size:
    """``_resize_output_size_rescale_to_max_len``: enlarges too; the short side is truncated, made even, at least 1."""
    aspect = size.width / size.height
    if size.width >= size.height:
        height = int(edge / aspect)
        return Size(edge, max(height + height % 2, 1))
    width = int(edge * aspect)
    return Size(max(width + width % 2, 1), edge)


def _below_upper_bound(size: Size, edge: int) -> Size:
    """``_resize_output_size_scale_below_upper_bound``: only shrinks; no evenness here."""
    aspect = size.width / size.height
    if size.width >= size.height and size.width > edge:
        return Size(edge, max(int(edge / aspect), 1))
    if size.height > size.width and size.height > edge:
        return Size(max(int(edge * aspect), 1), edge)
    return size


def _rounded_up_to_tiles(size: Size, side: int) -> Size:
    """``resize_for_vision_encoder``: the long side first, then the short side from the old aspect ratio."""
    aspect = size.width / size.height
    if size.width >= size.height:
        width = _ceil_to(size.width, side)
        return Size(width, _ceil_to(int(width / aspect), side))
    height = _ceil_to(size.height, side)
    return Size(_ceil_to(int(height * aspect), side), height)


def _ceil_to(length: int, side: int) -> int:
    return math.ceil(length / side) * side
