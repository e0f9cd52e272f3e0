"""InternVL2.5, 3 and 3.5: square tiles in the grid whose shape is closest, and an overview where there are several.

The arithmetic, floating point included, is that of Transformers' ``image_processing_pil_got_ocr2.py`` and
``processing_internvl.py``. Hub checkpoints with code of their own (``internvl_chat``) state the same rule elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

from opsin.core.conversation import Detail
from opsin.models.card import ModelCard
from opsin.models.files import Edges
from opsin.models.vision_files import VisionFiles
from opsin.vision.plan import Count, ImageTokens, OneImageToken, RenderRecipe, Size
from opsin.vision.reading import UNKNOWN_TOWER, VisionTower, filter_of, patch_side, positive, square
from opsin.vision.recipe import Filter, Resize, View
from opsin.vision.tiles import caps_of_tiles, tiles_within

_TOKENS = ImageTokens(start="<img>", image="<IMG_CONTEXT>", end="</img>")


@dataclass(frozen=True, slots=True, kw_only=True)
class InternVLFamily(OneImageToken):
    """The rule with one checkpoint's parameters. ``crops`` is whether pictures are cut unless ``detail`` says so."""

    name: str = "internvl"
    tile_side: int = 448
    tokens_per_tile: int = 256
    min_tiles: int = 1
    max_tiles: int = 12
    crops: bool = True
    has_overview: bool = True
    filter: Filter | None = Filter.BICUBIC
    tokens: ImageTokens = _TOKENS

    def count(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> Count:
        """See Family. ``low`` is one tile; ``high`` and ``original`` cut, ``auto`` as the checkpoint does."""
        columns, rows = self._cut(size, detail)
        num_tiles = columns * rows
        num_tiles += self.has_overview and num_tiles > 1
        return Count(
            original=size,
            used=Size(columns * self.tile_side, rows * self.tile_side),
            num_tiles=num_tiles,
            image_tokens=num_tiles * self.tokens_per_tile,
            marker_tokens=2,
        )

    def recipe(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> RenderRecipe | None:
        """See Rendering."""
        if self.filter is None:
            return None
        columns, rows = self._cut(size, detail)
        tile = Size(self.tile_side, self.tile_side)
        canvas = Size(columns * self.tile_side, rows * self.tile_side)
        tiles, overview = View((Resize(canvas, self.filter),), columns, rows), View((Resize(tile, self.filter),))
        return RenderRecipe(tile, (tiles, overview) if self.has_overview and columns * rows > 1 else (tiles,))

    def slot(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> str:
        """See NativeFamily."""
        return self.tokens.slot(self.count(size, detail).image_tokens)

    def with_max_pixels(self, max_pixels: int) -> Self:
        """See Family."""
        max_tiles = tiles_within(max_pixels, self.tile_side, self.max_tiles)
        return replace(self, max_tiles=max_tiles, min_tiles=min(self.min_tiles, max_tiles))

    def caps(self) -> Sequence[int]:
        """See Family."""
        return caps_of_tiles(self.tile_side, self.max_tiles)

    def _cut(self, size: Size, detail: Detail) -> tuple[int, int]:
        """Columns and rows."""
        crops = self.crops if detail is Detail.AUTO else detail is not Detail.LOW
        return self._grid(size) if crops and self.max_tiles > 1 else (1, 1)

    def _grid(self, size: Size) -> tuple[int, int]:
        """Columns and rows closest in shape; of equal shapes a larger one while the picture fills half of it."""
        aspect = size.width / size.height
        best, best_difference = (1, 1), float("inf")
        for grid in _grids(self.min_tiles, self.max_tiles):
            difference = abs(aspect - grid[0] / grid[1])
            if difference < best_difference:
                best, best_difference = grid, difference
            elif difference == best_difference and size.area > 0.5 * self.tile_side**2 * grid[0] * grid[1]:
                best = grid
        return best


@lru_cache
def _grids(min_tiles: int, max_tiles: int) -> list[tuple[int, int]]:
    """(columns, rows), fewest tiles first; of equally many, fewest columns first."""
    sides = range(1, max_tiles + 1)
    grids = [(columns, rows) for columns in sides for rows in sides if min_tiles <= columns * rows <= max_tiles]
    return sorted(grids, key=lambda grid: grid[0] * grid[1])


@dataclass(frozen=True, slots=True)
class _ImageProcessor:
    size: Edges | None = None
    crop_to_patches: bool = False
    min_patches: int = 1
    max_patches: int = 12


@dataclass(frozen=True, slots=True)
class _Processor:
    image_seq_length: int = 256


def from_files(files: VisionFiles) -> InternVLFamily:
    """The family of a checkpoint in Transformers' own layout. Raises ConfigError."""
    document = files.image_processor
    stated = document.read(_ImageProcessor)
    tokens = files.processor.read_if_any(_Processor).image_seq_length
    return InternVLFamily(
        name=files.model_type,
        tile_side=square(stated.size, 384, document),
        tokens_per_tile=positive(tokens, files.processor, "image_seq_length"),
        min_tiles=positive(stated.min_patches, document, "min_patches"),
        max_tiles=positive(stated.max_patches, document, "max_patches"),
        filter=filter_of(document, Filter.BICUBIC),
    )


def from_card(card: ModelCard) -> InternVLFamily:
    """With the marker tokens of its tokenizer. Raises ConfigError."""
    family, names = from_files(card.vision), card.special_tokens
    return replace(
        family,
        tokens=ImageTokens(
            image=names.get("context_image_token", _TOKENS.image),
            start=names.get("start_image_token", _TOKENS.start),
            end=names.get("end_image_token", _TOKENS.end),
        ),
    )


@dataclass(frozen=True, slots=True)
class _ChatConfig:
    vision_config: VisionTower = UNKNOWN_TOWER
    force_image_size: int = 448
    downsample_ratio: float = 0.5
    dynamic_image_size: bool = True
    use_thumbnail: bool = True
    min_dynamic_patch: int = 1
    max_dynamic_patch: int = 12


def from_chat_files(files: VisionFiles) -> InternVLFamily:
    """The family of a checkpoint with code of its own, whose config.json says it all. Raises ConfigError."""
    stated = files.config.read(_ChatConfig)
    side = positive(stated.force_image_size, files.config, "force_image_size")
    patches = side // patch_side(stated.vision_config, 14, files.config)
    return InternVLFamily(
        name=files.model_type,
        tile_side=side,
        tokens_per_tile=int(patches**2 * stated.downsample_ratio**2),
        min_tiles=positive(stated.min_dynamic_patch, files.config, "min_dynamic_patch"),
        max_tiles=positive(stated.max_dynamic_patch, files.config, "max_dynamic_patch"),
        crops=stated.dynamic_image_size,
        has_overview=stated.use_thumbnail,
    )
