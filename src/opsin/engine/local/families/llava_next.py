"""LLaVA-NeXT and OneVision: a view of the whole and the tiles of a canvas, whose padding is left out of the features.

The model itself chooses the canvas again, by the picture's own size.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch

from opsin.engine.local.families.seam import Seam
from opsin.engine.local.loading import Model


class LlavaNext(Seam):
    """See the module."""

    def encode(self, model: Model, pixels: torch.Tensor, originals: Seq[tuple[int, int]]) -> list[torch.Tensor]:
        """See Seam."""
        return list(self._encode(model, pixels, originals).pooler_output)

    def _encode(self, model: Model, pixels: torch.Tensor, originals: Seq[tuple[int, int]], **how: object) -> Any:
        sizes = torch.tensor([(height, width) for width, height in originals], device=pixels.device)
        return model.model.get_image_features(pixel_values=pixels, image_sizes=sizes, **how)


class LlavaOnevision(LlavaNext):
    """Pictures in company are one view each, and told by that: alone there is a canvas beside the view."""

    def encode(self, model: Model, pixels: torch.Tensor, originals: Seq[tuple[int, int]]) -> list[torch.Tensor]:
        """See Seam."""
        num_pictures, num_tiles = pixels.shape[:2]
        requests = [1] * num_pictures if num_tiles > 1 else [max(num_pictures, 2)]
        return list(self._encode(model, pixels, originals, batch_num_images=requests).pooler_output)
