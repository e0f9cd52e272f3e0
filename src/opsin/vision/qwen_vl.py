"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: a picture keeps its shape; blocks of patches become tokens.

The rule is ``Qwen2VLImageProcessor``'s for all of them; Qwen3's patches are larger. The chat template sets one marker
before a picture and one behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from opsin.core.conversation import Detail
from opsin.models.card import ModelCard
from opsin.models.files import Edges
from opsin.models.vision_files import VisionFiles
from opsin.vision.plan import Count, ImageTokens, Placeholder, RenderRecipe, Size
from opsin.vision.reading import LOW_PIXELS, filter_of, positive
from opsin.vision.recipe import Filter, resized
from opsin.vision.smart_resize import check_ratio, smart_resize

_MIN_PIXELS = 56 * 56
_MAX_PIXELS = 28 * 28 * 1280
_BOUNDS = Edges(shortest_edge=_MIN_PIXELS, longest_edge=_MAX_PIXELS)
_TOKENS = ImageTokens(image="<|image_pad|>")
_TEMPLATE_MARKERS = 2
"""``<|vision_start|>`` and ``<|vision_end|>``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenVLFamily:
    """The rule with one checkpoint's parameters: patches in pixels, ``merge_size`` patches per side of a token.

    ``min_pixels`` and ``max_pixels`` are over ``num_frames``, into which a still is repeated where that is not 1.
    """

    name: str = "qwen2_vl"
    patch_size: int = 14
    merge_size: int = 2
    num_frames: int = 1
    min_pixels: int = _MIN_PIXELS
    max_pixels: int = _MAX_PIXELS
    filter: Filter | None = Filter.BICUBIC
    tokens: ImageTokens = _TOKENS

    @property
    def image_token(self) -> str:
        """See NativeFamily."""
        return self.tokens.image

    @property
    def placeholder(self) -> Placeholder:
        """See NativeFamily."""
        return Placeholder(self.image_token, num_markers=_TEMPLATE_MARKERS)

    @property
    def factor(self) -> int:
        """Pixels per side of a token."""
        return self.patch_size * self.merge_size

    def count(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> Count:
        """See Family. ``high`` and ``original`` are ``auto``: the picture is scaled only down to the cap."""
        family = self.with_max_pixels(LOW_PIXELS) if detail is Detail.LOW else self
        used = family.resized(size)
        return Count(
            original=size,
            used=used,
            num_tiles=1,
            image_tokens=used.area // self.factor**2,
            marker_tokens=_TEMPLATE_MARKERS,
        )

    def recipe(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> RenderRecipe | None:
        """See Rendering. Patches are cut by the engine."""
        return None if self.filter is None else resized(self.count(size, detail).used, self.filter)

    def slot(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> str:
        """See NativeFamily."""
        return self.tokens.slot(self.count(size, detail).image_tokens)

    def resized(self, size: Size) -> Size:
        """The size that the encoder sees. Raises MediaError."""
        check_ratio(size, size)
        return smart_resize(size, self.factor, self.min_pixels, self.max_pixels, self.num_frames)

    def with_max_pixels(self, max_pixels: int) -> Self:
        """See Family."""
        capped = min(max(max_pixels, self.factor**2) * self.num_frames, self.max_pixels)
        return replace(self, max_pixels=capped, min_pixels=min(self.min_pixels, capped))

    def with_min_pixels(self, min_pixels: int) -> Self:
        """See BoundedFamily."""
        return replace(self, min_pixels=min(min_pixels * self.num_frames, self.min_pixels))

    def caps(self) -> range:
        """See Family."""
        return range(self.factor**2, self.max_pixels // self.num_frames + 1)


@dataclass(frozen=True, slots=True)
class _ImageProcessor:
    patch_size: int = 14
    merge_size: int = 2
    size: Edges = _BOUNDS
    min_pixels: int | None = None
    max_pixels: int | None = None


def from_files(files: VisionFiles) -> QwenVLFamily:
    """The family of a checkpoint; older files state the bounds apart, and these win. Raises ConfigError."""
    document = files.image_processor
    stated = document.read(_ImageProcessor)
    return QwenVLFamily(
        name=files.model_type,
        patch_size=positive(stated.patch_size, document, "patch_size"),
        merge_size=positive(stated.merge_size, document, "merge_size"),
        min_pixels=positive(stated.min_pixels or stated.size.shortest_edge, document, "size.shortest_edge"),
        max_pixels=positive(stated.max_pixels or stated.size.longest_edge, document, "size.longest_edge"),
        filter=filter_of(document, Filter.BICUBIC),
    )


def from_card(card: ModelCard) -> QwenVLFamily:
    """With the image token of its tokenizer. Raises ConfigError."""
    family = from_files(card.vision)
    return replace(family, tokens=ImageTokens(image=card.special_tokens.get("image_token", _TOKENS.image)))
