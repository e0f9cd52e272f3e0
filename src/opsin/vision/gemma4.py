"""Gemma 4: a picture keeps its shape and is scaled, up or down, to one of five budgets of tokens.

The arithmetic is that of ``get_aspect_ratio_preserving_size`` in Transformers' ``image_processing_pil_gemma4.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from opsin.core.conversation import Detail
from opsin.core.errors import ConfigError
from opsin.models.vision_files import VisionFiles
from opsin.vision.plan import Count, RenderRecipe, Size
from opsin.vision.reading import filter_of, positive
from opsin.vision.recipe import Filter, resized

BUDGETS = (70, 140, 280, 560, 1120)
"""Tokens per picture that the processor accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4Family:
    """The rule with one checkpoint's parameters. ``budget`` is its own default, ``max_budget`` the highest allowed."""

    name: str = "gemma4"
    patch_size: int = 16
    pooling: int = 3
    budget: int = 280
    max_budget: int = BUDGETS[-1]
    filter: Filter | None = Filter.BICUBIC

    @property
    def factor(self) -> int:
        """Pixels per side of a token."""
        return self.patch_size * self.pooling

    def count(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> Count:
        """See Family. ``low`` is the smallest budget, ``high`` and ``original`` the largest, ``auto`` the default."""
        used = self._scaled(size, self._budget(detail))
        return Count(original=size, used=used, num_tiles=1, image_tokens=used.area // self.factor**2, marker_tokens=2)

    def recipe(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> RenderRecipe | None:
        """See Rendering. Patches are cut by the engine."""
        return None if self.filter is None else resized(self.count(size, detail).used, self.filter)

    def with_max_pixels(self, max_pixels: int) -> Self:
        """See Family: down to a budget that the processor accepts."""
        allowed = [budget for budget in BUDGETS if budget * self.factor**2 <= max_pixels]
        highest = min(max(allowed, default=BUDGETS[0]), self.max_budget)
        return replace(self, budget=min(self.budget, highest), max_budget=highest)

    def caps(self) -> Sequence[int]:
        """See Family."""
        return [budget * self.factor**2 for budget in BUDGETS if budget <= self.max_budget]

    def _budget(self, detail: Detail) -> int:
        match detail:
            case Detail.LOW:
                return BUDGETS[0]
            case Detail.AUTO:
                return self.budget
            case Detail.HIGH | Detail.ORIGINAL:
                return self.max_budget

    def _scaled(self, size: Size, budget: int) -> Size:
        """Whole tokens within the budget; a side that would vanish becomes one token, the other a row of them."""
        max_patches = budget * self.pooling**2
        scale = math.sqrt(max_patches * self.patch_size**2 / size.area)
        width = math.floor(scale * size.width / self.factor) * self.factor
        height = math.floor(scale * size.height / self.factor) * self.factor
        longest = budget * self.factor
        if height == 0:
            return Size(min(size.width // size.height * self.factor, longest), self.factor)
        if width == 0:
            return Size(self.factor, min(size.height // size.width * self.factor, longest))
        return Size(width, height)


@dataclass(frozen=True, slots=True)
class _ImageProcessor:
    patch_size: int = 16
    pooling_kernel_size: int = 3
    max_soft_tokens: int = 280


def from_files(files: VisionFiles) -> Gemma4Family:
    """The family of a checkpoint. Raises ConfigError."""
    document = files.image_processor
    stated = document.read(_ImageProcessor)
    if stated.max_soft_tokens not in BUDGETS:
        raise ConfigError(f"{document.name}: max_soft_tokens is {stated.max_soft_tokens}, supported are {BUDGETS}")
    return Gemma4Family(
        name=files.model_type,
        patch_size=positive(stated.patch_size, document, "patch_size"),
        pooling=positive(stated.pooling_kernel_size, document, "pooling_kernel_size"),
        budget=stated.max_soft_tokens,
        filter=filter_of(document, Filter.BICUBIC),
    )
