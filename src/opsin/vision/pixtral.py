"""Pixtral and Mistral Small 3.x: a picture keeps its shape within a square; a marker ends every row of tokens.

The arithmetic is that of Transformers' ``image_processing_pil_pixtral.py`` and ``processing_pixtral.py``. The last
row's marker ends the picture.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

from opsin.core.conversation import Detail
from opsin.core.errors import ConfigError
from opsin.models.files import Edges
from opsin.models.vision_files import VisionFiles
from opsin.vision.plan import Count, ImageTokens, OneImageToken, RenderRecipe, Size
from opsin.vision.reading import LOW_PIXELS, TowerConfig, filter_of, patch_side, positive, refuse_shape
from opsin.vision.recipe import Filter, resized

_LONGEST_EDGE = 1024
_WITHIN = Edges(longest_edge=_LONGEST_EDGE)
_TOKENS, _ROW_END = ImageTokens(image="[IMG]", end="[IMG_END]"), "[IMG_BREAK]"


@dataclass(frozen=True, slots=True, kw_only=True)
class PixtralFamily(OneImageToken):
    """The rule with one checkpoint's parameters, in pixels; ``factor`` is the side of a token."""

    name: str = "pixtral"
    longest_edge: int = _LONGEST_EDGE
    factor: int = 16
    filter: Filter | None = Filter.BICUBIC
    tokens: ImageTokens = _TOKENS
    row_end: str = _ROW_END

    def count(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> Count:
        """See Family. ``high`` and ``original`` are ``auto``: the picture is scaled only down to the cap."""
        family = self.with_max_pixels(LOW_PIXELS) if detail is Detail.LOW else self
        scaled = family._scaled(size)
        columns, rows = (scaled.width - 1) // self.factor + 1, (scaled.height - 1) // self.factor + 1
        if columns * rows == 0:
            raise refuse_shape(size, f"has no row of pixels left of it at {family.longest_edge} on the longer side")
        return Count(
            original=size,
            used=Size(columns * self.factor, rows * self.factor),
            num_tiles=1,
            image_tokens=columns * rows,
            marker_tokens=rows,
        )

    def recipe(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> RenderRecipe | None:
        """See Rendering. Patches are cut by the engine."""
        return None if self.filter is None else resized(self.count(size, detail).used, self.filter)

    def slot(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> str:
        """See NativeFamily."""
        count = self.count(size, detail)
        columns, rows = count.image_tokens // count.marker_tokens, count.marker_tokens
        return (self.tokens.image * columns + self.row_end) * (rows - 1) + self.tokens.slot(columns)

    def with_max_pixels(self, max_pixels: int) -> Self:
        """See Family: the cap is on a square's side."""
        return replace(self, longest_edge=min(max(math.isqrt(max_pixels), self.factor), self.longest_edge))

    def caps(self) -> range:
        """See Family."""
        return range(self.factor**2, self.longest_edge**2 + 1)

    def _scaled(self, size: Size) -> Size:
        ratio = max(size.height / self.longest_edge, size.width / self.longest_edge)
        if ratio > 1:
            return Size(math.floor(size.width / ratio), math.floor(size.height / ratio))
        return size


@dataclass(frozen=True, slots=True)
class _ImageProcessor:
    size: Edges = _WITHIN
    patch_size: Edges | int | None = None


@dataclass(frozen=True, slots=True)
class _Processor:
    patch_size: int | None = None
    spatial_merge_size: int | None = None
    image_token: str | None = None
    image_break_token: str | None = None
    image_end_token: str | None = None


@dataclass(frozen=True, slots=True)
class _Config:
    spatial_merge_size: int = 1


def from_files(files: VisionFiles) -> PixtralFamily:
    """The family of a checkpoint. Raises ConfigError."""
    document = files.image_processor
    size = document.read(_ImageProcessor).size
    processor = files.processor.read_if_any(_Processor)
    tower = files.config.read(TowerConfig).vision_config
    if size.longest_edge is None:
        raise ConfigError(f"{document.name}: size.longest_edge is missing")
    patch = processor.patch_size or patch_side(tower, 16, files.config)
    merge = processor.spatial_merge_size or files.config.read(_Config).spatial_merge_size
    return PixtralFamily(
        name=files.model_type,
        longest_edge=positive(size.longest_edge, document, "size.longest_edge"),
        factor=patch * positive(merge, files.processor, "spatial_merge_size"),
        filter=filter_of(document, Filter.BICUBIC),
        tokens=ImageTokens(image=processor.image_token or _TOKENS.image, end=processor.image_end_token or _TOKENS.end),
        row_end=processor.image_break_token or _ROW_END,
    )
