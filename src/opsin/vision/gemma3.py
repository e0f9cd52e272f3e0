"""Gemma 3: one square view; with pan and scan, a long picture is also shown in pieces.

The arithmetic is that of ``pan_and_scan`` in Transformers' ``image_processing_pil_gemma3.py``. Around every view stand
a start and an end marker; the blank lines and words that the processor adds are text, and not counted here. The local
engine never pans and scans: the words would have to be tokenised with the text before them, which is measured earlier.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from opsin.core.conversation import Detail
from opsin.core.errors import ConfigError
from opsin.models.card import ModelCard
from opsin.models.files import Edges
from opsin.models.vision_files import VisionFiles
from opsin.vision.plan import Count, ImageTokens, Placeholder, RenderRecipe, Size
from opsin.vision.reading import filter_of, positive, square
from opsin.vision.recipe import Filter, Resize, View, Window
from opsin.vision.tiles import caps_of_tiles, tiles_within

_BLANK_LINE = "\n\n"
_TOKENS = ImageTokens(start="<start_of_image>", image="<image_soft_token>", end="<end_of_image>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3Family:
    """The rule with one checkpoint's parameters. ``max_crops`` 1 is what remains of pan and scan under a cap."""

    name: str = "gemma3"
    view_side: int = 896
    tokens_per_view: int = 256
    pan_and_scan: bool = False
    min_crop_side: int = 256
    max_crops: int = 4
    min_ratio: float = 1.2
    filter: Filter | None = Filter.BILINEAR
    tokens: ImageTokens = _TOKENS

    @property
    def image_token(self) -> str:
        """See NativeFamily."""
        return self.tokens.image

    @property
    def placeholder(self) -> Placeholder:
        """See NativeFamily: the template writes only the start marker."""
        return Placeholder(self.tokens.start, before=_BLANK_LINE, after=_BLANK_LINE)

    def count(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> Count:
        """See Family. ``high`` and ``original`` pan and scan, ``low`` does not, ``auto`` as the checkpoint does."""
        num_views = 1 + self._num_crops(size, detail)
        return Count(
            original=size,
            used=Size(self.view_side, self.view_side),
            num_tiles=num_views,
            image_tokens=num_views * self.tokens_per_view,
            marker_tokens=num_views * 2,
        )

    def recipe(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> RenderRecipe | None:
        """See Rendering. The whole comes first; the last piece may be shorter than the others."""
        if self.filter is None:
            return None
        to_view = Resize(Size(self.view_side, self.view_side), self.filter)
        pieces = _pieces(size, self._num_crops(size, detail))
        return RenderRecipe(to_view.size, (View((to_view,)), *(View((piece, to_view)) for piece in pieces)))

    def slot(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> str:
        """See NativeFamily: one view."""
        return self.tokens.slot(self.tokens_per_view)

    def with_max_pixels(self, max_pixels: int) -> Self:
        """See Family: fewer pieces. Under two of them nothing is cut."""
        return replace(self, max_crops=tiles_within(max_pixels, self.view_side, self.max_crops))

    def caps(self) -> Sequence[int]:
        """See Family."""
        return caps_of_tiles(self.view_side, self.max_crops)

    def _num_crops(self, size: Size, detail: Detail) -> int:
        pans = self.pan_and_scan if detail is Detail.AUTO else detail is not Detail.LOW
        longer, shorter = max(size.width, size.height), min(size.width, size.height)
        if not pans or self.max_crops < 2 or longer / shorter < self.min_ratio:
            return 0
        wanted = min(longer // self.min_crop_side, math.floor(longer / shorter + 0.5))
        num_crops = min(self.max_crops, max(2, wanted))
        too_small = min(math.ceil(longer / num_crops), shorter) < self.min_crop_side
        return 0 if too_small else num_crops


def _pieces(size: Size, num_pieces: int) -> Iterator[Window]:
    """Along the longer side."""
    if num_pieces == 0:
        return
    step = math.ceil(max(size.width, size.height) / num_pieces)
    for start in range(0, num_pieces * step, step):
        if size.width >= size.height:
            yield Window(start, 0, Size(min(step, size.width - start), size.height))
        else:
            yield Window(0, start, Size(size.width, min(step, size.height - start)))


@dataclass(frozen=True, slots=True)
class _ImageProcessor:
    size: Edges | None = None
    do_pan_and_scan: bool | None = None
    pan_and_scan_min_crop_size: int | None = None
    pan_and_scan_max_num_crops: int | None = None
    pan_and_scan_min_ratio_to_activate: float | None = None


@dataclass(frozen=True, slots=True)
class _Processor:
    image_seq_length: int = 256


def from_files(files: VisionFiles) -> Gemma3Family:
    """The family of a checkpoint; what its file leaves open is the processor's own. Raises ConfigError."""
    document = files.image_processor
    stated = document.read(_ImageProcessor)
    tokens = files.processor.read_if_any(_Processor).image_seq_length
    return Gemma3Family(
        name=files.model_type,
        view_side=square(stated.size, 224, document),
        tokens_per_view=positive(tokens, files.processor, "image_seq_length"),
        pan_and_scan=bool(stated.do_pan_and_scan),
        min_crop_side=stated.pan_and_scan_min_crop_size or 256,
        max_crops=stated.pan_and_scan_max_num_crops or 4,
        min_ratio=stated.pan_and_scan_min_ratio_to_activate or 1.2,
        filter=filter_of(document, Filter.BILINEAR),
    )


def from_card(card: ModelCard) -> Gemma3Family:
    """With the marker tokens of its tokenizer, and one view of every picture. Raises ConfigError."""
    family, names = from_files(card.vision), card.special_tokens
    if family.pan_and_scan:
        raise ConfigError(f"{card.vision.image_processor.name}: do_pan_and_scan is true; the local engine has one view")
    return replace(
        family,
        max_crops=1,
        tokens=ImageTokens(
            image=names.get("image_token", _TOKENS.image),
            start=names.get("boi_token", _TOKENS.start),
            end=names.get("eoi_token", _TOKENS.end),
        ),
    )
