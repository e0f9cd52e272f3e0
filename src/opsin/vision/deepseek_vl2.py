"""DeepSeek-VL2: LLaVA-NeXT's choice of a canvas without cutting off the padding; three pictures or more are not cut.

Rule as in vLLM's ``deepseek_vl2.py`` and the model's own ``processing_deepseek_vl_v2.py``; Transformers has none. The
newline of every row and the separator of the views are features, and count as image tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from opsin.core.conversation import Detail
from opsin.core.errors import ConfigError
from opsin.models.vision_files import VisionFiles
from opsin.vision.pinpoints import areas, below, best_canvas, fitted
from opsin.vision.plan import Count, Size
from opsin.vision.reading import positive

_IN_TILES = (
    (1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (1, 4), (4, 1), (2, 2), (1, 5), (5, 1), (1, 6), (6, 1), (2, 3), (3, 2),
    (1, 7), (7, 1), (1, 8), (8, 1), (2, 4), (4, 2), (1, 9), (9, 1), (3, 3),
)  # fmt: skip
_CANVASES = tuple(Size(width * 384, height * 384) for width, height in _IN_TILES)

MAX_PICTURES_TO_CUT = 2
"""With more in one request, each is one tile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekVL2Family:
    """The rule with one checkpoint's parameters. ``side_tokens`` is a tile's side in tokens."""

    name: str = "deepseek_vl_v2"
    tile_side: int = 384
    side_tokens: int = 14
    canvases: tuple[Size, ...] = _CANVASES

    def count(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> Count:
        """See Family. ``low`` does not cut; ``high`` and ``original`` are ``auto``."""
        cuts = detail is not Detail.LOW and num_pictures <= MAX_PICTURES_TO_CUT
        canvas = best_canvas(size, self.canvases) if cuts else Size(self.tile_side, self.tile_side)
        columns, rows = canvas.width // self.tile_side, canvas.height // self.tile_side
        side = self.side_tokens
        overview, separator = side * (side + 1), 1
        return Count(
            original=size,
            used=fitted(size, canvas),
            num_tiles=columns * rows + 1,
            image_tokens=overview + separator + rows * side * (columns * side + 1),
            marker_tokens=0,
        )

    def with_max_pixels(self, max_pixels: int) -> Self:
        """See Family."""
        return replace(self, canvases=below(self.canvases, max_pixels))

    def caps(self) -> Sequence[int]:
        """See Family."""
        return areas(self.canvases)


@dataclass(frozen=True, slots=True)
class _Processor:
    candidate_resolutions: list[tuple[int, int]] | None = None
    patch_size: int = 14
    downsample_ratio: int = 2


def from_files(files: VisionFiles) -> DeepseekVL2Family:
    """The family of a checkpoint. Raises ConfigError."""
    document = files.processor
    stated = document.read(_Processor)
    if stated.candidate_resolutions == []:
        raise ConfigError(f"{document.name}: candidate_resolutions is empty")
    canvases = tuple(Size(width, height) for width, height in stated.candidate_resolutions or ()) or _CANVASES
    tile_side = canvases[0].width
    patches = tile_side // positive(stated.patch_size, document, "patch_size")
    return DeepseekVL2Family(
        name=files.model_type,
        tile_side=tile_side,
        side_tokens=-(-patches // positive(stated.downsample_ratio, document, "downsample_ratio")),
        canvases=canvases,
    )
