"""LLaVA-NeXT (1.6): the best of a list of canvases in square tiles, less its padding, after one view of the whole.

The arithmetic is that of Transformers' ``processing_llava_next.py``. A learned newline feature ends every row of the
canvas; it is filled by the encoder and counts as an image token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from opsin.core.conversation import Detail
from opsin.core.errors import ConfigError
from opsin.models.card import ModelCard
from opsin.models.files import Document, Edges
from opsin.models.vision_files import VisionFiles
from opsin.vision.llava import IMAGE_TOKENS, ClassToken, image_tokens_of
from opsin.vision.pinpoints import areas, below, best_canvas, fitted, without_padding
from opsin.vision.plan import Count, ImageTokens, OneImageToken, RenderRecipe, Size
from opsin.vision.reading import TowerConfig, filter_of, patch_side, positive
from opsin.vision.recipe import Filter, Resize, View, on_canvas

_CANVASES = tuple(
    Size(width, height) for height, width in ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
)

_SMALL_VIEW = Edges(shortest_edge=224)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlavaNextFamily(OneImageToken):
    """The rule with one checkpoint's parameters. ``extra_tokens`` belong to the overview, beside its patches.

    Unless it ``lowers``, all pictures have the canvas that the model itself chooses.
    """

    name: str = "llava_next"
    tile_side: int = 336
    patch_size: int = 14
    canvases: tuple[Size, ...] = _CANVASES
    extra_tokens: int = 0
    filter: Filter | None = Filter.BICUBIC
    lowers: bool = True
    tokens: ImageTokens = IMAGE_TOKENS

    def count(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> Count:
        """See Family. ``low`` takes the smallest canvases, if it lowers; ``high`` and ``original`` are ``auto``."""
        canvas = self._canvas(size, detail)
        tiles = Size(canvas.width // self.tile_side, canvas.height // self.tile_side)
        patches = self.tile_side // self.patch_size
        features = without_padding(size, Size(tiles.width * patches, tiles.height * patches))
        newlines = features.height
        return Count(
            original=size,
            used=fitted(size, canvas),
            num_tiles=tiles.area + 1,
            image_tokens=features.area + newlines + patches**2 + self.extra_tokens,
            marker_tokens=0,
        )

    def recipe(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> RenderRecipe | None:
        """See Rendering."""
        return None if self.filter is None else anyres(size, self._canvas(size, detail), self.tile_side, self.filter)

    def slot(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> str:
        """See NativeFamily."""
        return self.tokens.slot(self.count(size, detail, num_pictures).image_tokens)

    def _canvas(self, size: Size, detail: Detail) -> Size:
        is_low = self.lowers and detail is Detail.LOW
        return best_canvas(size, below(self.canvases, 0) if is_low else self.canvases)

    def with_max_pixels(self, max_pixels: int) -> Self:
        """See Family."""
        return replace(self, canvases=below(self.canvases, max_pixels)) if self.lowers else self

    def caps(self) -> Sequence[int]:
        """See Family."""
        return areas(self.canvases) if self.lowers else ()


@dataclass(frozen=True, slots=True)
class _ImageProcessor:
    size: Edges = _SMALL_VIEW
    image_grid_pinpoints: list[tuple[int, int]] | None = None
    crop_size: Edges | None = None
    do_center_crop: bool = True


def from_files(files: VisionFiles) -> LlavaNextFamily:
    """The family of a checkpoint. Raises ConfigError."""
    document = files.image_processor
    stated = document.read(_ImageProcessor)
    processor = files.processor.read_if_any(ClassToken)
    tower = files.config.read(TowerConfig).vision_config
    tile_side = view_side(stated.size, document)
    cropped = stated.do_center_crop and stated.crop_size not in (None, Edges(height=tile_side, width=tile_side))
    return LlavaNextFamily(
        name=files.model_type,
        tile_side=tile_side,
        patch_size=processor.patch_size or patch_side(tower, 14, files.config),
        canvases=canvases_of(stated.image_grid_pinpoints, document) or _CANVASES,
        extra_tokens=processor.extra,
        filter=None if cropped else filter_of(document, Filter.BICUBIC),
    )


def from_card(card: ModelCard) -> LlavaNextFamily:
    """As the model that runs here has it, which chooses the canvas by the picture's size alone. Raises ConfigError."""
    family = from_files(card.vision)
    check_canvases(family.canvases, family.tile_side, card.vision.image_processor)
    return replace(family, lowers=False, tokens=image_tokens_of(card))


def check_canvases(canvases: Sequence[Size], side: int, document: Document) -> None:
    """Raises ConfigError for one that is not of whole tiles, which no recipe cuts."""
    for canvas in canvases:
        if canvas.width % side or canvas.height % side:
            raise ConfigError(
                f"{document.name}: image_grid_pinpoints has {canvas.width} x {canvas.height}, no multiple of {side}"
            )


def anyres(size: Size, canvas: Size, side: int, resampling: Filter) -> RenderRecipe | None:
    """An overview, then the tiles of a canvas; None for a canvas that is not of whole tiles."""
    if canvas.width % side or canvas.height % side:
        return None
    tile = Size(side, side)
    tiles = on_canvas(fitted(size, canvas), canvas, tile, resampling, centred=True)
    return RenderRecipe(tile, (View((Resize(tile, resampling),)), tiles))


def view_side(size: Edges, document: Document) -> int:
    """The side of the views that the processor makes. Raises ConfigError."""
    sides = [side for side in (size.shortest_edge, size.height, size.width) if side is not None]
    return positive(size.shortest_edge or min(sides, default=None), document, "size.shortest_edge")


def canvases_of(pinpoints: list[tuple[int, int]] | None, document: Document) -> tuple[Size, ...]:
    """The canvases of ``image_grid_pinpoints``, which has the height first. Raises ConfigError."""
    if pinpoints == []:
        raise ConfigError(f"{document.name}: image_grid_pinpoints is empty")
    return tuple(Size(width, height) for height, width in pinpoints or ())
