"""Chameleon: every picture is the same number of discrete tokens, whatever its size.

As in Transformers' ``processing_chameleon.py``: one view, a start and an end marker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from opsin.core.conversation import Detail
from opsin.models.vision_files import VisionFiles
from opsin.vision.plan import Count, Size
from opsin.vision.reading import positive


@dataclass(frozen=True, slots=True, kw_only=True)
class ChameleonFamily:
    """The rule with one checkpoint's parameters. ``view_side`` is in pixels."""

    name: str = "chameleon"
    view_side: int = 512
    tokens_per_picture: int = 1024

    def count(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> Count:
        """See Family. ``detail`` changes nothing."""
        return Count(
            original=size,
            used=Size(self.view_side, self.view_side),
            num_tiles=1,
            image_tokens=self.tokens_per_picture,
            marker_tokens=2,
        )

    def with_max_pixels(self, max_pixels: int) -> Self:
        """See Family: there is nothing to lower."""
        return self

    def caps(self) -> tuple[int, ...]:
        """See Family."""
        return ()


@dataclass(frozen=True, slots=True)
class _Processor:
    image_seq_length: int = 1024


def from_files(files: VisionFiles) -> ChameleonFamily:
    """The family of a checkpoint. Raises ConfigError."""
    tokens = files.processor.read_if_any(_Processor).image_seq_length
    return ChameleonFamily(
        name=files.model_type, tokens_per_picture=positive(tokens, files.processor, "image_seq_length")
    )
