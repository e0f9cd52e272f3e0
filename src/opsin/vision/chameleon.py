"""Chameleon: every picture is the same number of discrete tokens, whatever its size.

As in Transformers' ``processing_chameleon.py``: one view, a start and an end marker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from opsin.core.conversation import Detail
from opsin.models.files import Edges
from opsin.models.vision_files import VisionFiles
from opsin.vision.plan import Count, RenderRecipe, Size
from opsin.vision.reading import filter_of, positive
from opsin.vision.recipe import Filter, middle


@dataclass(frozen=True, slots=True, kw_only=True)
class ChameleonFamily:
    """The rule with one checkpoint's parameters. ``view_side`` is in pixels."""

    name: str = "chameleon"
    view_side: int = 512
    tokens_per_picture: int = 1024
    filter: Filter | None = Filter.LANCZOS

    def count(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> Count:
        """See Family. ``detail`` changes nothing."""
        return Count(
            original=size,
            used=Size(self.view_side, self.view_side),
            num_tiles=1,
            image_tokens=self.tokens_per_picture,
            marker_tokens=2,
        )

    def recipe(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> RenderRecipe | None:
        """See Rendering."""
        view = Size(self.view_side, self.view_side)
        return None if self.filter is None else middle(size, self.view_side, view, self.filter)

    def with_max_pixels(self, max_pixels: int) -> Self:
        """See Family: there is nothing to lower."""
        return self

    def caps(self) -> tuple[int, ...]:
        """See Family."""
        return ()


_EDGE = Edges(shortest_edge=512)
_VIEW = Edges(height=512, width=512)


@dataclass(frozen=True, slots=True)
class _ImageProcessor:
    size: Edges = _EDGE
    crop_size: Edges = _VIEW
    do_center_crop: bool = True


@dataclass(frozen=True, slots=True)
class _Processor:
    image_seq_length: int = 1024


def from_files(files: VisionFiles) -> ChameleonFamily:
    """The family of a checkpoint. Raises ConfigError."""
    tokens = files.processor.read_if_any(_Processor).image_seq_length
    document = files.image_processor
    stated = document.read(_ImageProcessor)
    is_usual = (stated.size, stated.crop_size, stated.do_center_crop) == (_EDGE, _VIEW, True)
    return ChameleonFamily(
        name=files.model_type,
        tokens_per_picture=positive(tokens, files.processor, "image_seq_length"),
        filter=filter_of(document, Filter.LANCZOS) if is_usual else None,
    )
