"""Llama 4: square tiles on the canvas that enlarges least, separators between them, and an overview.

The arithmetic is that of Transformers' ``image_processing_llama4.py`` and ``processing_llama4.py``. They choose the
canvas with 32-bit floats, which choose alike: two different scales of sides below 2**19 differ by more than these can
blur. The size to which the picture is then scaled does depend on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from struct import Struct
from typing import Self

from opsin.core.conversation import Detail
from opsin.models.files import Edges
from opsin.models.vision_files import VisionFiles
from opsin.vision.plan import Count, RenderRecipe, Size
from opsin.vision.reading import filter_of, positive, square
from opsin.vision.recipe import Filter, Resize, View, on_canvas
from opsin.vision.tiles import caps_of_tiles, tiles_within

_FLOAT32 = Struct("<f")


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama4Family:
    """The rule with one checkpoint's parameters. ``to_largest_canvas`` enlarges as far as the tiles allow."""

    name: str = "llama4"
    tile_side: int = 336
    tokens_per_tile: int = 144
    max_tiles: int = 16
    to_largest_canvas: bool = False
    filter: Filter | None = Filter.BILINEAR

    def count(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> Count:
        """See Family. ``low`` is one tile; ``high`` and ``original`` are ``auto``.

        Markers are start, overview and end, and one separator behind every tile of a cut picture.
        """
        tiles = self._tiles(size, detail)
        num_tiles = tiles.area + 1 if tiles.area > 1 else 1
        return Count(
            original=size,
            used=self._scaled(size, tiles),
            num_tiles=num_tiles,
            image_tokens=num_tiles * self.tokens_per_tile,
            marker_tokens=3 + (tiles.area if tiles.area > 1 else 0),
        )

    def recipe(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> RenderRecipe | None:
        """See Rendering. There is no PIL backend of this processor; torchvision's filters round differently."""
        if self.filter is None:
            return None
        tiles, tile = self._tiles(size, detail), Size(self.tile_side, self.tile_side)
        canvas = Size(tiles.width * self.tile_side, tiles.height * self.tile_side)
        view = on_canvas(self._scaled(size, tiles), canvas, tile, self.filter, centred=False)
        overview = View((Resize(tile, self.filter),))
        return RenderRecipe(tile, (view, overview) if tiles.area > 1 else (view,))

    def with_max_pixels(self, max_pixels: int) -> Self:
        """See Family."""
        return replace(self, max_tiles=tiles_within(max_pixels, self.tile_side, self.max_tiles))

    def caps(self) -> Sequence[int]:
        """See Family."""
        return caps_of_tiles(self.tile_side, self.max_tiles)

    def _tiles(self, size: Size, detail: Detail) -> Size:
        """The smallest enlargement (or the largest), or else the least reduction; of equal ones, the fewest tiles."""
        max_tiles = 1 if detail is Detail.LOW else self.max_tiles
        scaled = [
            (min(tiles.width * self.tile_side / size.width, tiles.height * self.tile_side / size.height), tiles)
            for tiles in _canvases(max_tiles)
        ]
        enlarging = [scale for scale, _ in scaled if scale >= 1]
        if enlarging:
            chosen = max(enlarging) if self.to_largest_canvas else min(enlarging)
        else:
            chosen = max(scale for scale, _ in scaled)
        return min((tiles for scale, tiles in scaled if scale == chosen), key=lambda tiles: tiles.area)

    def _scaled(self, size: Size, tiles: Size) -> Size:
        """The picture on its canvas: not enlarged beyond one tile unless to the largest canvas; at least one pixel."""
        width = self._target(size.width, tiles.width)
        height = self._target(size.height, tiles.height)
        by_width, by_height = width.over(size.width), height.over(size.height)
        if by_width < by_height:
            return Size(width.length, max(min(width.scaled(size.height, size.width), height.length), 1))
        return Size(max(min(height.scaled(size.width, size.height), width.length), 1), height.length)

    def _target(self, side: int, tiles: int) -> _Target:
        limit, wanted = tiles * self.tile_side, max(side, self.tile_side)
        if self.to_largest_canvas or limit < wanted:
            return _Target(limit, is_tensor=True)
        return _Target(wanted, is_tensor=False)


@dataclass(frozen=True, slots=True)
class _Target:
    """A side to scale to. The processor's canvas is a tensor, and what it is divided by becomes one."""

    length: int
    is_tensor: bool

    def over(self, side: int) -> float:
        """The scale, as it is compared."""
        return _float32(self.length / side) if self.is_tensor else self.length / side

    def scaled(self, other: int, side: int) -> int:
        """The other side at this one's scale."""
        product = other * self.over(side)
        return math.floor(_float32(product) if self.is_tensor else product)


def _float32(value: float) -> float:
    return _FLOAT32.unpack(_FLOAT32.pack(value))[0]


@lru_cache
def _canvases(max_tiles: int) -> list[Size]:
    """All canvases in tiles, most tiles first, those of one shape together."""
    by_shape: dict[float, list[Size]] = {}
    for num_tiles in range(max_tiles, 0, -1):
        for height in (side for side in range(1, num_tiles + 1) if num_tiles % side == 0):
            width = num_tiles // height
            by_shape.setdefault(height / width, []).append(Size(width, height))
    return [canvas for canvases in by_shape.values() for canvas in canvases]


@dataclass(frozen=True, slots=True)
class _ImageProcessor:
    size: Edges | None = None
    max_patches: int = 16
    resize_to_max_canvas: bool = False


@dataclass(frozen=True, slots=True)
class _Processor:
    patch_size: int = 14
    pixel_shuffle_ratio: float = 0.5


def from_files(files: VisionFiles) -> Llama4Family:
    """The family of a checkpoint. Raises ConfigError."""
    document = files.image_processor
    stated = document.read(_ImageProcessor)
    processor = files.processor.read_if_any(_Processor)
    side = square(stated.size, 336, document)
    patches = side // positive(processor.patch_size, files.processor, "patch_size")
    return Llama4Family(
        name=files.model_type,
        tile_side=side,
        tokens_per_tile=patches**2 // round(1 / processor.pixel_shuffle_ratio**2),
        max_tiles=positive(stated.max_patches, document, "max_patches"),
        to_largest_canvas=stated.resize_to_max_canvas,
        filter=filter_of(document, Filter.BILINEAR),
    )
