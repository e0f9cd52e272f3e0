"""Mistral 3: the encoder wants each picture's size, and gives features merged over patches."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from opsin.engine.local.families.seam import Seam
from opsin.engine.local.loading import Model


class Mistral3(Seam):
    """See the module."""

    def encode(self, model: Model, pixels: torch.Tensor, originals: Seq[tuple[int, int]]) -> list[torch.Tensor]:
        """See Seam."""
        pictures = pixels.flatten(0, 1)
        sizes = torch.tensor([pictures.shape[-2:]] * len(pictures), device=pictures.device)
        return list(model.model.get_image_features(pixel_values=pictures, image_sizes=sizes).pooler_output)
