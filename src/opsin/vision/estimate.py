"""A guess for model types without a rule: fixed views where the encoder has one size, else blocks of patches.

It is labelled (``Count.exact`` is false) and meant for planning, never for admission.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

from opsin.core.conversation import Detail
from opsin.models.vision_files import VisionFiles
from opsin.vision.plan import Count, Size
from opsin.vision.reading import LOW_PIXELS, TowerConfig, patch_side


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A token is ``factor`` x ``factor`` pixels of a picture that keeps its shape below ``max_pixels``."""

    name: str
    factor: int = 28
    max_pixels: int = 2048 * 2048

    def count(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> Count:
        """See Family."""
        max_pixels = min(self.max_pixels, LOW_PIXELS) if detail is Detail.LOW else self.max_pixels
        scale = min(1.0, math.sqrt(max_pixels / size.area))
        used = Size(max(int(size.width * scale), 1), max(int(size.height * scale), 1))
        tokens = math.ceil(used.width / self.factor) * math.ceil(used.height / self.factor)
        return Count(original=size, used=used, num_tiles=1, image_tokens=tokens, marker_tokens=2, exact=False)

    def with_max_pixels(self, max_pixels: int) -> Self:
        """See Family."""
        return replace(self, max_pixels=min(max(max_pixels, self.factor**2), self.max_pixels))

    def caps(self) -> range:
        """See Family."""
        return range(self.factor**2, self.max_pixels + 1)


def estimated(files: VisionFiles) -> Estimate:
    """From the encoder's patches, two by two of which most models join. Raises ConfigError."""
    tower = files.config.read(TowerConfig).vision_config
    return Estimate(name=files.model_type, factor=2 * patch_side(tower, 14, files.config))
