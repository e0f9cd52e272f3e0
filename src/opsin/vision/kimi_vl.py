"""Kimi-VL: a picture keeps its size up to a number of patches; blocks of two by two become tokens.

Rule as in vLLM's ``kimi_vl.py`` and the model's own ``image_processing_kimi_vl.py``; Transformers has none. Around a
picture stand a start, the word ``image``, a content marker and an end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

from opsin.core.conversation import Detail
from opsin.models.vision_files import VisionFiles
from opsin.vision.plan import Count, Size
from opsin.vision.reading import LOW_PIXELS, positive, refuse_shape

MAX_SIDE_PATCHES = 511
"""The encoder has no positions beyond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiVLFamily:
    """The rule with one checkpoint's parameters. The limit is checked on whole patches before padding."""

    name: str = "kimi_vl"
    patch_size: int = 14
    merge_size: int = 2
    max_patches: int = 4096

    def count(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> Count:
        """See Family. ``high`` and ``original`` are ``auto``: the picture is scaled only down to the cap."""
        family = self.with_max_pixels(LOW_PIXELS) if detail is Detail.LOW else self
        used = family._scaled(size)
        factor = self.patch_size * self.merge_size
        columns, rows = math.ceil(used.width / factor), math.ceil(used.height / factor)
        longest = MAX_SIDE_PATCHES // self.merge_size
        if columns * rows == 0 or max(columns, rows) > longest:
            raise refuse_shape(size, f"takes sides of 1 to {longest * factor} pixels once scaled")
        return Count(original=size, used=used, num_tiles=1, image_tokens=columns * rows, marker_tokens=4)

    def with_max_pixels(self, max_pixels: int) -> Self:
        """See Family."""
        return replace(self, max_patches=min(max(max_pixels // self.patch_size**2, 1), self.max_patches))

    def caps(self) -> range:
        """See Family."""
        return range(self.patch_size**2, self.max_patches * self.patch_size**2 + 1)

    def _scaled(self, size: Size) -> Size:
        num_patches = (size.width // self.patch_size) * (size.height // self.patch_size)
        if num_patches <= self.max_patches:
            return size
        scale = math.sqrt(self.max_patches / num_patches)
        return Size(int(size.width * scale), int(size.height * scale))


@dataclass(frozen=True, slots=True)
class _ImageProcessor:
    patch_size: int = 14
    in_token_limit: int = 4096
    merge_kernel_size: tuple[int, int] = (2, 2)


def from_files(files: VisionFiles) -> KimiVLFamily:
    """The family of a checkpoint. Raises ConfigError."""
    document = files.image_processor
    stated = document.read(_ImageProcessor)
    return KimiVLFamily(
        name=files.model_type,
        patch_size=positive(stated.patch_size, document, "patch_size"),
        merge_size=positive(stated.merge_kernel_size[0], document, "merge_kernel_size"),
        max_patches=positive(stated.in_token_limit, document, "in_token_limit"),
    )
