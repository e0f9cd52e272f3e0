"""LLaVA-1.5, and LLaVA-NeXT-Interleave: every picture is one square view, whatever its size.

The rule is that of Transformers' ``processing_llava.py``. The same model type also holds Pixtral, told by its encoder.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from opsin.core.conversation import Detail
from opsin.core.errors import ConfigError
from opsin.models.card import ModelCard
from opsin.models.files import Document, Edges
from opsin.models.vision_files import VisionFiles
from opsin.vision import pixtral
from opsin.vision.plan import Count, Family, ImageTokens, NativeFamily, OneImageToken, RenderRecipe, Size
from opsin.vision.reading import TowerConfig, background, filter_of, patch_side, positive
from opsin.vision.recipe import Colour, Filter, middle, resized, squared

_CLIP_VIEW = Size(336, 336)
IMAGE_TOKENS = ImageTokens(image="<image>")


@dataclass(frozen=True, slots=True, kw_only=True)
class LlavaFamily(OneImageToken):
    """``view`` is what the encoder sees, in pixels.

    The picture is squared on ``background`` if there is one, else its shorter side becomes ``shortest_edge`` and its
    middle is taken, else it is resized to the view.
    """

    name: str = "llava"
    view: Size = _CLIP_VIEW
    tokens_per_view: int = 576
    filter: Filter | None = Filter.BICUBIC
    shortest_edge: int | None = 336
    background: Colour | None = None
    tokens: ImageTokens = IMAGE_TOKENS

    def count(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> Count:
        """See Family. ``detail`` changes nothing."""
        return Count(original=size, used=self.view, num_tiles=1, image_tokens=self.tokens_per_view, marker_tokens=0)

    def recipe(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> RenderRecipe | None:
        """See Rendering."""
        if self.filter is None:
            return None
        if self.background is not None:
            return squared(size, self.view.width, self.filter, self.background)
        if self.shortest_edge is not None:
            return middle(size, self.shortest_edge, self.view, self.filter)
        return resized(self.view, self.filter)

    def slot(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> str:
        """See NativeFamily."""
        return self.tokens.slot(self.tokens_per_view)

    def with_max_pixels(self, max_pixels: int) -> Self:
        """See Family: there is nothing to lower."""
        return self

    def caps(self) -> tuple[int, ...]:
        """See Family."""
        return ()


@dataclass(frozen=True, slots=True)
class _ImageProcessor:
    size: Edges | int | None = None
    crop_size: Edges | int | None = None
    do_center_crop: bool | None = None
    do_pad: bool | None = None

    @property
    def crops(self) -> bool:
        return self.do_center_crop is not False and self.crop_size is not None

    @property
    def shortest_edge(self) -> int | None:
        return self.size.shortest_edge if isinstance(self.size, Edges) else self.size


@dataclass(frozen=True, slots=True)
class ClassToken:
    """How the processors of LLaVA count the encoder's class token: as one more, which one strategy drops again."""

    patch_size: int | None = None
    num_additional_image_tokens: int = 0
    vision_feature_select_strategy: str | None = None

    @property
    def extra(self) -> int:
        """Tokens of a view beside its patches. Files that name no patch size count none."""
        if self.patch_size is None:
            return 0
        return self.num_additional_image_tokens - (self.vision_feature_select_strategy == "default")


def from_files(files: VisionFiles) -> Family:
    """The family of a checkpoint. Raises ConfigError."""
    return pixtral.from_files(files) if _is_pixtral(files) else _with_one_view(files)


def from_card(card: ModelCard) -> NativeFamily:
    """The same with its tokenizer's image token. Raises ConfigError."""
    if _is_pixtral(card.vision):
        return pixtral.from_files(card.vision)
    return replace(_with_one_view(card.vision), tokens=image_tokens_of(card))


def image_tokens_of(card: ModelCard) -> ImageTokens:
    """As the processors of LLaVA find them: the tokenizer's own, else the processor's. Raises ConfigError."""
    stated = card.vision.processor.read_if_any(_ImageToken).image_token
    return ImageTokens(image=card.special_tokens.get("image_token") or stated or IMAGE_TOKENS.image)


@dataclass(frozen=True, slots=True)
class _ImageToken:
    image_token: str | None = None


def _is_pixtral(files: VisionFiles) -> bool:
    return files.config.read(TowerConfig).vision_config.model_type == "pixtral"


def _with_one_view(files: VisionFiles) -> LlavaFamily:
    tower = files.config.read(TowerConfig).vision_config
    document = files.image_processor
    stated = document.read(_ImageProcessor)
    view = _view(stated, document)
    processor = files.processor.read_if_any(ClassToken)
    patch = processor.patch_size or patch_side(tower, 14, files.config)
    return LlavaFamily(
        name=files.model_type,
        view=view,
        tokens_per_view=(view.height // patch) * (view.width // patch) + processor.extra,
        filter=filter_of(document, Filter.BICUBIC) if _is_followed(stated, view) else None,
        shortest_edge=stated.shortest_edge if stated.crops else None,
        background=background(document) if stated.do_pad else None,
    )


def _is_followed(stated: _ImageProcessor, view: Size) -> bool:
    """Whether the steps are ones that ``recipe`` knows."""
    if stated.do_pad:
        return stated.shortest_edge == view.width == view.height
    return not stated.crops or stated.shortest_edge is not None


def _view(stated: _ImageProcessor, document: Document) -> Size:
    size, field = (stated.crop_size, "crop_size") if stated.crops else (stated.size, "size")
    if isinstance(size, int):
        return Size(positive(size, document, field), size)
    if size is None or size.height is None or size.width is None:
        raise ConfigError(f"{document.name}: {field} gives no height and width; views then have no fixed size")
    return Size(positive(size.width, document, f"{field}.width"), positive(size.height, document, f"{field}.height"))
