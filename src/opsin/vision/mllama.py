"""Llama 3.2 Vision: up to four tiles, which the language model looks at by cross-attention.

The prompt holds one marker per picture and no image token; the encoder's features take memory beside the prompt. The
arithmetic is that of ``get_optimal_tiled_canvas`` in Transformers' ``image_processing_pil_mllama.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

from opsin.core.conversation import Detail
from opsin.models.files import Edges
from opsin.models.vision_files import VisionFiles
from opsin.vision.plan import Count, RenderRecipe, Size
from opsin.vision.reading import TowerConfig, filter_of, patch_side, positive, square
from opsin.vision.recipe import Filter, on_canvas
from opsin.vision.tiles import caps_of_tiles, tiles_within


@dataclass(frozen=True, slots=True, kw_only=True)
class MllamaFamily:
    """The rule with one checkpoint's parameters."""

    name: str = "mllama"
    tile_side: int = 560
    max_tiles: int = 4
    patch_size: int = 14
    filter: Filter | None = Filter.BILINEAR

    def count(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> Count:
        """See Family. ``low`` is one tile; ``high`` and ``original`` are ``auto``."""
        tiles = self._tiles(size, detail)
        tokens_per_tile = (self.tile_side // self.patch_size) ** 2 + 1
        return Count(
            original=size,
            used=self._fitted(size, tiles),
            num_tiles=tiles.area,
            image_tokens=0,
            marker_tokens=1,
            cross_attention_tokens=tiles.area * tokens_per_tile,
        )

    def recipe(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> RenderRecipe | None:
        """See Rendering. Missing tiles are the engine's to fill up."""
        if self.filter is None:
            return None
        tiles, tile = self._tiles(size, detail), Size(self.tile_side, self.tile_side)
        canvas = Size(tiles.width * self.tile_side, tiles.height * self.tile_side)
        view = on_canvas(self._fitted(size, tiles), canvas, tile, self.filter, centred=False)
        return RenderRecipe(tile, (view,))

    def with_max_pixels(self, max_pixels: int) -> Self:
        """See Family."""
        return replace(self, max_tiles=tiles_within(max_pixels, self.tile_side, self.max_tiles))

    def caps(self) -> Sequence[int]:
        """See Family."""
        return caps_of_tiles(self.tile_side, self.max_tiles)

    def _tiles(self, size: Size, detail: Detail) -> Size:
        """The smallest enlargement, or else the least reduction; of equal ones, the fewest tiles."""
        max_tiles = 1 if detail is Detail.LOW else self.max_tiles
        scaled = [
            (min(tiles.height * self.tile_side / size.height, tiles.width * self.tile_side / size.width), tiles)
            for tiles in _arrangements(max_tiles)
        ]
        enlarging = [scale for scale, _ in scaled if scale >= 1]
        chosen = min(enlarging) if enlarging else max(scale for scale, _ in scaled)
        return min((tiles for scale, tiles in scaled if scale == chosen), key=lambda tiles: tiles.area)

    def _fitted(self, size: Size, tiles: Size) -> Size:
        """Never under a tile's side nor over the canvas on the side that decides; at least one pixel on the other."""
        width = min(max(size.width, self.tile_side), tiles.width * self.tile_side)
        height = min(max(size.height, self.tile_side), tiles.height * self.tile_side)
        by_width, by_height = width / size.width, height / size.height
        if by_width < by_height:
            return Size(width, min(math.floor(size.height * by_width) or 1, height))
        return Size(min(math.floor(size.width * by_height) or 1, width), height)


@lru_cache
def _arrangements(max_tiles: int) -> list[Size]:
    """Canvases in tiles, the height counting first."""
    sides = range(1, max_tiles + 1)
    return [Size(width, height) for height in sides for width in sides if width * height <= max_tiles]


@dataclass(frozen=True, slots=True)
class _ImageProcessor:
    size: Edges | None = None
    max_image_tiles: int = 4


def from_files(files: VisionFiles) -> MllamaFamily:
    """The family of a checkpoint. Raises ConfigError."""
    document = files.image_processor
    stated = document.read(_ImageProcessor)
    return MllamaFamily(
        name=files.model_type,
        tile_side=square(stated.size, 224, document),
        max_tiles=positive(stated.max_image_tiles, document, "max_image_tiles"),
        patch_size=patch_side(files.config.read(TowerConfig).vision_config, 14, files.config),
        filter=filter_of(document, Filter.BILINEAR),
    )
