"""LLaVA-OneVision: LLaVA-NeXT's rule with many canvases, whose features are shrunk when there are too many of them.

The arithmetic, floating point included, is that of Transformers' ``processing_llava_onevision.py``. Pictures that come
in company are one view and one newline each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from opsin.core.conversation import Detail
from opsin.core.errors import ConfigError
from opsin.models.card import ModelCard
from opsin.models.files import Edges
from opsin.models.vision_files import VisionFiles
from opsin.vision.llava import IMAGE_TOKENS, image_tokens_of
from opsin.vision.llava_next import anyres, canvases_of, check_canvases, view_side
from opsin.vision.pinpoints import areas, below, best_canvas, fitted, without_padding
from opsin.vision.plan import Count, ImageTokens, OneImageToken, RenderRecipe, Size
from opsin.vision.reading import CLIP_GREY, background, filter_of, positive
from opsin.vision.recipe import Colour, Filter, squared

_VIEW = Edges(height=384, width=384)
_SIDES = range(384, 2304 + 1, 384)
_CANVASES = tuple(Size(width, height) for height in _SIDES for width in _SIDES)

_SHRINK_OVER = 1.1
"""Features are shrunk when a side would have to be divided by more than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlavaOnevisionFamily(OneImageToken):
    """The rule with one checkpoint's parameters. ``max_views`` is the number in ``anyres_max_9``.

    Unless it ``lowers``, a picture alone has the canvas that the model itself chooses.
    """

    name: str = "llava_onevision"
    tile_side: int = 384
    tokens_per_view: int = 729
    canvases: tuple[Size, ...] = _CANVASES
    max_views: int = 9
    drops_class_token: bool = False
    filter: Filter | None = Filter.BICUBIC
    background: Colour = CLIP_GREY
    lowers: bool = True
    tokens: ImageTokens = IMAGE_TOKENS

    def count(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> Count:
        """See Family. ``low`` is what a picture in company costs; ``high`` and ``original`` are ``auto``."""
        if _is_one_view(detail, num_pictures):
            return self._count(size, Size(self.tile_side, self.tile_side), 1, 1)
        canvas = best_canvas(size, self.canvases)
        tiles = Size(canvas.width // self.tile_side, canvas.height // self.tile_side)
        features = self._features(size, tiles)
        newlines = features.height
        return self._count(size, fitted(size, canvas), tiles.area + 1, features.area + newlines)

    def recipe(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> RenderRecipe | None:
        """See Rendering."""
        if self.filter is None:
            return None
        if _is_one_view(detail, num_pictures):
            return squared(size, self.tile_side, self.filter, self.background)
        return anyres(size, best_canvas(size, self.canvases), self.tile_side, self.filter)

    def slot(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> str:
        """See NativeFamily."""
        return self.tokens.slot(self.count(size, detail, num_pictures).image_tokens)

    def with_max_pixels(self, max_pixels: int) -> Self:
        """See Family."""
        return replace(self, canvases=below(self.canvases, max_pixels)) if self.lowers else self

    def caps(self) -> Sequence[int]:
        """See Family."""
        return areas(self.canvases) if self.lowers else ()

    def _features(self, size: Size, tiles: Size) -> Size:
        side = int(math.sqrt(self.tokens_per_view))
        features = without_padding(size, Size(tiles.width * side, tiles.height * side))
        ratio = math.sqrt(features.area / (self.max_views * side**2))
        if ratio > _SHRINK_OVER:
            return Size(int(features.width // ratio), int(features.height // ratio))
        return features

    def _count(self, size: Size, used: Size, num_tiles: int, beside_overview: int) -> Count:
        image_tokens = beside_overview + self.tokens_per_view - self.drops_class_token
        return Count(original=size, used=used, num_tiles=num_tiles, image_tokens=image_tokens, marker_tokens=0)


def _is_one_view(detail: Detail, num_pictures: int) -> bool:
    return detail is Detail.LOW or num_pictures > 1


@dataclass(frozen=True, slots=True)
class _ImageProcessor:
    size: Edges = _VIEW
    image_grid_pinpoints: list[tuple[int, int]] | None = None


@dataclass(frozen=True, slots=True)
class _Processor:
    num_image_tokens: int = 729
    vision_feature_select_strategy: str | None = None
    vision_aspect_ratio: str = "anyres_max_9"


def from_files(files: VisionFiles) -> LlavaOnevisionFamily:
    """The family of a checkpoint. Raises ConfigError."""
    document = files.image_processor
    stated = document.read(_ImageProcessor)
    processor = files.processor.read_if_any(_Processor)
    max_views = processor.vision_aspect_ratio.removeprefix("anyres_max_")
    if not max_views.isdecimal():
        raise ConfigError(
            f"{files.processor.name}: vision_aspect_ratio is {processor.vision_aspect_ratio}, supported is anyres_max_N"
        )
    return LlavaOnevisionFamily(
        name=files.model_type,
        tile_side=view_side(stated.size, document),
        tokens_per_view=positive(processor.num_image_tokens, files.processor, "num_image_tokens"),
        canvases=canvases_of(stated.image_grid_pinpoints, document) or _CANVASES,
        max_views=positive(int(max_views), files.processor, "vision_aspect_ratio"),
        drops_class_token=processor.vision_feature_select_strategy == "default",
        filter=filter_of(document, Filter.BICUBIC),
        background=background(document),
    )


def from_card(card: ModelCard) -> LlavaOnevisionFamily:
    """As the model that runs here has it, which chooses the canvas by the picture's size alone. Raises ConfigError."""
    family = from_files(card.vision)
    check_canvases(family.canvases, family.tile_side, card.vision.image_processor)
    return replace(family, lowers=False, tokens=image_tokens_of(card))
