"""Idefics3 and SmolVLM: a picture is scaled to a longest edge, cut into square tiles, and shown once more as a whole.

Every tile becomes ``tokens_per_tile`` image tokens. The arithmetic, floating point included, is that of Transformers'
``image_processing_pil_idefics3.py`` and ``processing_idefics3.py``; SmolVLM's files hold the same rule and differ only
in that the tokenizer may rename the marker tokens. This module knows no pixels and no tokenizer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from opsin.core.conversation import Detail
from opsin.core.errors import ConfigError
from opsin.models.card import ModelCard
from opsin.models.files import Edges
from opsin.models.vision_files import VisionFiles
from opsin.vision.plan import Count, Placeholder, RenderRecipe, Size
from opsin.vision.reading import filter_of, positive
from opsin.vision.recipe import Filter, Resize, View

MAX_EDGE = 4096
"""``MAX_IMAGE_SIZE`` of the processor: no side is ever longer, whatever the checkpoint asks for."""

_BLANK_LINE = "\n\n"


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

    ``blank_line_tokens`` is what the tokenizer makes of the two line feeds before the overview.
    ``longest_edge`` and ``tile_side`` are pixels (``size.longest_edge`` and ``max_image_size.longest_edge`` of the
    processor); ``tokens_per_tile`` is its ``image_seq_len``.
    """

    name: str = "idefics3"
    longest_edge: int = 4 * 364
    tile_side: int = 364
    tokens_per_tile: int = 169
    do_image_splitting: bool = True
    blank_line_tokens: int = 1
    filter: Filter = Filter.LANCZOS
    markers: Markers = Markers()

    @property
    def image_token(self) -> str:
        """See NativeFamily."""
        return self.markers.image

    @property
    def placeholder(self) -> Placeholder:
        """See NativeFamily."""
        return Placeholder(self.image_token)

    def count(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> Count:
        """See Family. ``auto`` is the checkpoint's own default, ``low`` never cuts, ``original`` is ``high``."""
        fit = self._fitting(size, detail)
        num_tiles = fit.rows * fit.columns + 1
        return Count(
            original=size,
            used=fit.cut,
            num_tiles=num_tiles,
            image_tokens=num_tiles * self.tokens_per_tile,
            marker_tokens=self._num_markers(fit.rows, fit.columns),
        )

    def recipe(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> RenderRecipe:
        """See Rendering. The overview is made from the picture that is cut."""
        fit, tile = self._fitting(size, detail), Size(self.tile_side, self.tile_side)
        steps = (Resize(fit.scaled, self.filter), Resize(fit.cut, self.filter))
        if fit.rows == 0:
            return RenderRecipe(tile, (View(steps),))
        return RenderRecipe(tile, (View(steps, fit.columns, fit.rows), View((*steps, Resize(tile, self.filter)))))

    def slot(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> str:
        """See NativeFamily."""
        fit = self._fitting(size, detail)
        return self._slot(fit.rows, fit.columns)

    def counted_by(self, num_tokens: Callable[[str], int]) -> Self:
        """See TokenizedFamily: small tokenizers have no token for a blank line."""
        return replace(self, blank_line_tokens=num_tokens(_BLANK_LINE))

    def with_max_pixels(self, max_pixels: int) -> Self:
        """See Family: the longest edge falls to whole tiles."""
        edge = max(math.isqrt(max_pixels) // self.tile_side, 1) * self.tile_side
        return replace(self, longest_edge=min(edge, self.longest_edge))

    def with_image_splitting(self, splits: bool) -> Self:
        """See SplittingFamily."""
        return replace(self, do_image_splitting=splits)

    def caps(self) -> Sequence[int]:
        """See Family."""
        return [(tiles * self.tile_side) ** 2 for tiles in range(1, self.longest_edge // self.tile_side + 1)]

    def _fitting(self, size: Size, detail: Detail) -> _Fit:
        split = self.do_image_splitting if detail is Detail.AUTO else detail is not Detail.LOW
        side = self.tile_side
        tile = Size(side, side)
        scaled = _below_upper_bound(_scaled_to_longest_edge(size, self.longest_edge), MAX_EDGE)
        fitted = _rounded_up_to_tiles(scaled, side) if split else tile
        # The processor decides by the fitted size, so a small `longest_edge` leaves one tile even when it splits.
        if fitted == tile:
            return _Fit(scaled, tile, rows=0, columns=0)
        return _Fit(scaled, fitted, rows=fitted.height // side, columns=fitted.width // side)

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

    def _num_markers(self, rows: int, columns: int) -> int:
        """Two before every tile, one at the end, and a line feed behind every row; two behind the last."""
        line_feeds = rows - 1 + self.blank_line_tokens if rows else 0
        return 3 + 2 * rows * columns + line_feeds


@dataclass(frozen=True, slots=True)
class _Fit:
    """The picture's sizes: first ``scaled``, then ``cut`` into tiles; no rows where it is the only one."""

    scaled: Size
    cut: Size
    rows: int
    columns: int


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


@dataclass(frozen=True, slots=True)
class _ImageProcessor:
    size: Edges | int | None = None
    max_image_size: Edges | None = None
    do_image_splitting: bool = True


@dataclass(frozen=True, slots=True)
class _Processor:
    image_seq_len: int | None = None


@dataclass(frozen=True, slots=True)
class _Tower:
    patch_size: int | None = None


@dataclass(frozen=True, slots=True)
class _Config:
    vision_config: _Tower = _Tower()
    scale_factor: float | None = None


def from_files(files: VisionFiles, markers: Markers | None = None) -> Idefics3Family:
    """The family of a checkpoint.

    Raises:
        ConfigError: a value is missing, contradicts another one, or is of a kind that the recipe cannot follow.
    """
    document = files.image_processor
    stated = document.read(_ImageProcessor)
    resampling = filter_of(document, Filter.LANCZOS)
    if resampling is None:
        raise ConfigError("image processor: do_resize is false, or resample is not one of Pillow's filters")
    size = stated.size if isinstance(stated.size, Edges) else Edges()
    tile = stated.max_image_size or Edges()
    tile_side = positive(tile.longest_edge, document, "max_image_size.longest_edge")
    return Idefics3Family(
        name=files.model_type,
        longest_edge=positive(size.longest_edge, document, "size.longest_edge"),
        tile_side=tile_side,
        tokens_per_tile=_tokens_per_tile(files, tile_side),
        do_image_splitting=stated.do_image_splitting,
        filter=resampling,
        markers=markers or Markers(),
    )


def from_card(card: ModelCard) -> Idefics3Family:
    """With its processor's marker tokens; SmolVLM's takes them from the tokenizer. Raises ConfigError."""
    if card.model_type == "idefics3":
        return from_files(card.vision)  # Idefics3Processor fixes its marker tokens
    default, tokens = Markers(), card.special_tokens
    markers = Markers(
        fake=tokens.get("fake_image_token", default.fake),
        overview=tokens.get("global_image_token", default.overview),
        image=tokens.get("image_token", default.image),
    )
    return from_files(card.vision, markers)


def _tokens_per_tile(files: VisionFiles, tile_side: int) -> int:
    """``image_seq_len``, which must be what the model's encoder and connector yield for a tile."""
    stated = files.processor.read_if_any(_Processor).image_seq_len
    config = files.config.read(_Config)
    if config.vision_config.patch_size is None or config.scale_factor is None:
        if stated is None:
            raise ConfigError("processor_config.json: image_seq_len is missing and config.json does not give it either")
        return stated
    yielded = int((tile_side // config.vision_config.patch_size) ** 2 / config.scale_factor**2)
    if stated not in (None, yielded):
        raise ConfigError(f"processor_config.json: image_seq_len is {stated}, but the model makes {yielded} of a tile")
    return yielded
