"""MiniCPM-V 2.6 to 4.7: an overview and up to nine slices of about 448 x 448 pixels that keep the picture's shape.

Until 4.5 every view becomes the same number of tokens (a resampler); from 4.6 on, blocks of patches do. The arithmetic
of grid and sizes is that of Transformers' ``image_processing_pil_minicpmv4_6.py``, which the earlier models' own code
shares; theirs is also in vLLM's ``minicpmv.py``. The number in the picture's label is taken for one token, as it is
for the first ten pictures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from opsin.core.conversation import Detail
from opsin.core.errors import ConfigError
from opsin.models.vision_files import VisionFiles
from opsin.vision.plan import Count, Size
from opsin.vision.reading import positive
from opsin.vision.tiles import caps_of_tiles, tiles_within

_BLOCKS = {"16x": 4, "4x": 2}
"""Patches per side of a token, by ``downsample_mode``."""

_NO_GRID = Size(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniCPMVFamily:
    """The rule with one checkpoint's parameters.

    ``slice_side`` is the side of a square slice, to whose area slices of another shape are scaled; ``factor`` is what
    their sides are multiples of. ``tokens_per_view`` is None where a token is a block of ``factor`` x ``factor``.
    """

    name: str = "minicpmv"
    slice_side: int = 448
    max_slices: int = 9
    factor: int = 14
    tokens_per_view: int | None = 64
    has_label: bool = True

    def count(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> Count:
        """See Family. ``low`` is the overview alone; ``high`` and ``original`` are ``auto``."""
        grid = self._grid(size, 1 if detail is Detail.LOW else self.max_slices)
        overview = self._scaled(size.width, size.height, enlarges=grid is None)
        if grid is None:
            return self._count(size, overview, self._tokens(overview), _NO_GRID)
        piece = self._scaled(
            _nearest_multiple(size.width, grid.width) / grid.width,
            _nearest_multiple(size.height, grid.height) / grid.height,
            enlarges=True,
        )
        used = Size(piece.width * grid.width, piece.height * grid.height)
        return self._count(size, used, self._tokens(overview) + grid.area * self._tokens(piece), grid)

    def with_max_pixels(self, max_pixels: int) -> Self:
        """See Family."""
        return replace(self, max_slices=tiles_within(max_pixels, self.slice_side, self.max_slices))

    def caps(self) -> Sequence[int]:
        """See Family."""
        return caps_of_tiles(self.slice_side, self.max_slices)

    def _count(self, size: Size, used: Size, image_tokens: int, grid: Size) -> Count:
        num_views = 1 + grid.area
        line_feeds = max(grid.height - 1, 0)
        return Count(
            original=size,
            used=used,
            num_tiles=num_views,
            image_tokens=image_tokens,
            marker_tokens=3 * self.has_label + 2 * num_views + line_feeds,
        )

    def _tokens(self, view: Size) -> int:
        return view.area // self.factor**2 if self.tokens_per_view is None else self.tokens_per_view

    def _grid(self, size: Size, max_slices: int) -> Size | None:
        """Columns and rows closest to the picture's shape, as the logarithm sees it; None without slices."""
        wanted = min(math.ceil(size.area / (self.slice_side * self.slice_side)), max_slices)
        if wanted <= 1:
            return None
        log_ratio = math.log(size.width / size.height)
        grids = _grids(wanted, max_slices)
        return min(grids, key=lambda grid: (abs(log_ratio - math.log(grid.width / grid.height)), -grid.height))

    def _scaled(self, width: float, height: float, *, enlarges: bool) -> Size:
        if enlarges or width * height > self.slice_side * self.slice_side:
            ratio = width / height
            height = int(self.slice_side / math.sqrt(ratio))
            width = int(height * ratio)
        return Size(_nearest_multiple(width, self.factor), _nearest_multiple(height, self.factor))


def _grids(wanted: int, max_slices: int) -> Iterator[Size]:
    for num_slices in (wanted - 1, wanted, wanted + 1):
        if 1 < num_slices <= max_slices:
            rows = (rows for rows in range(1, num_slices + 1) if num_slices % rows == 0)
            yield from (Size(num_slices // row, row) for row in rows)


def _nearest_multiple(length: float, divisor: int) -> int:
    return max(round(length / divisor) * divisor, divisor)


@dataclass(frozen=True, slots=True)
class _ImageProcessor:
    max_slice_nums: int = 9
    scale_resolution: int = 448
    patch_size: int = 14
    slice_mode: bool = True
    use_image_id: bool = True
    image_feature_size: int = 64
    downsample_mode: str = "16x"


def from_files(files: VisionFiles) -> MiniCPMVFamily:
    """The family of a checkpoint with a resampler. Raises ConfigError."""
    stated = files.image_processor.read(_ImageProcessor)
    tokens = positive(stated.image_feature_size, files.image_processor, "image_feature_size")
    return _family(files, stated, stated.patch_size, tokens)


def from_block_files(files: VisionFiles) -> MiniCPMVFamily:
    """The family of a checkpoint whose tokens are blocks of patches. Raises ConfigError."""
    stated = files.image_processor.read(_ImageProcessor)
    block = _BLOCKS.get(stated.downsample_mode)
    if block is None:
        raise ConfigError(f"{files.image_processor.name}: downsample_mode is {stated.downsample_mode}")
    return _family(files, stated, stated.patch_size * block, None)


def _family(files: VisionFiles, stated: _ImageProcessor, factor: int, tokens_per_view: int | None) -> MiniCPMVFamily:
    document = files.image_processor
    return MiniCPMVFamily(
        name=files.model_type,
        slice_side=positive(stated.scale_resolution, document, "scale_resolution"),
        max_slices=positive(stated.max_slice_nums, document, "max_slice_nums") if stated.slice_mode else 1,
        factor=positive(factor, document, "patch_size"),
        tokens_per_view=tokens_per_view,
        has_label=stated.use_image_id,
    )
