"""Molmo: an overview and up to twelve overlapping crops, pooled 2 x 2, with a marker behind every row of tokens.

Rule as in vLLM's ``molmo.py`` and the model's own ``image_preprocessing_molmo.py``; Transformers has only the second
generation, whose choice of a grid is the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

from opsin.core.conversation import Detail
from opsin.models.vision_files import VisionFiles
from opsin.vision.plan import Count, Size
from opsin.vision.reading import positive
from opsin.vision.tiles import caps_of_tiles, tiles_within


@dataclass(frozen=True, slots=True, kw_only=True)
class MolmoFamily:
    """The rule with one checkpoint's parameters. ``margins`` are the overlaps of crops, in patches."""

    name: str = "molmo"
    crop_side: int = 336
    patch_size: int = 14
    max_crops: int = 12
    margins: tuple[int, int] = (4, 4)
    pooling: int = 2

    def count(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> Count:
        """See Family. ``low`` is one crop; ``high`` and ``original`` are ``auto``."""
        margin = sum(self.margins) * self.patch_size
        window = self.crop_side - margin
        crops = _tiling(
            size.width - margin, size.height - margin, window, 1 if detail is Detail.LOW else self.max_crops
        )
        overview = math.ceil(self.crop_side // self.patch_size / self.pooling)
        columns, rows = self._tokens(crops.width), self._tokens(crops.height)
        return Count(
            original=size,
            used=Size(crops.width * window + margin, crops.height * window + margin),
            num_tiles=crops.area + 1,
            image_tokens=overview**2 + columns * rows,
            marker_tokens=2 + overview + 2 + rows,
        )

    def with_max_pixels(self, max_pixels: int) -> Self:
        """See Family."""
        return replace(self, max_crops=tiles_within(max_pixels, self.crop_side, self.max_crops))

    def caps(self) -> Sequence[int]:
        """See Family."""
        return caps_of_tiles(self.crop_side, self.max_crops)

    def _tokens(self, num_crops: int) -> int:
        """Tokens along a row of crops: margins count once, at both ends; every crop is pooled apart."""
        patches = self.crop_side // self.patch_size
        left, right = self.margins
        window = patches - left - right
        if num_crops == 1:
            return math.ceil(patches / self.pooling)
        ends = math.ceil((window + left) / self.pooling) + math.ceil((window + right) / self.pooling)
        return ends + (num_crops - 2) * math.ceil(window / self.pooling)


def _tiling(width: int, height: int, window: int, max_crops: int) -> Size:
    """The smallest enlargement of the picture less its margins, or else the least reduction; of equals the first."""
    scaled = [
        (min(_quotient(crops.height * window, height), _quotient(crops.width * window, width)), crops)
        for crops in _tilings(max_crops)
    ]
    enlarging = [entry for entry in scaled if entry[0] >= 1]
    if enlarging:
        return min(enlarging, key=lambda entry: entry[0])[1]
    return max(scaled, key=lambda entry: entry[0])[1]


def _quotient(length: int, side: int) -> float:
    """A side that its margins use up does not limit."""
    return length / side if side else math.inf


@lru_cache
def _tilings(max_crops: int) -> list[Size]:
    sides = range(1, max_crops + 1)
    tilings = [Size(columns, rows) for rows in sides for columns in sides if rows * columns <= max_crops]
    return sorted(tilings, key=lambda tiling: tiling.area)


@dataclass(frozen=True, slots=True)
class _ImageProcessor:
    max_crops: int = 12
    overlap_margins: tuple[int, int] = (4, 4)
    base_image_input_size: tuple[int, int] = (336, 336)
    image_patch_size: int = 14


def from_files(files: VisionFiles) -> MolmoFamily:
    """The family of a checkpoint. Raises ConfigError."""
    document = files.image_processor
    stated = document.read(_ImageProcessor)
    return MolmoFamily(
        name=files.model_type,
        crop_side=positive(stated.base_image_input_size[0], document, "base_image_input_size"),
        patch_size=positive(stated.image_patch_size, document, "image_patch_size"),
        max_crops=positive(stated.max_crops, document, "max_crops"),
        margins=stated.overlap_margins,
    )
