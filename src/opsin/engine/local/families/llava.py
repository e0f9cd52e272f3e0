"""LLaVA: views of one size, or Pixtral's encoder, which has to be told each picture's."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from opsin.engine.local.families.mistral3 import Mistral3
from opsin.engine.local.families.seam import Seam
from opsin.engine.local.loading import Model


class Llava(Mistral3):
    """See the module."""

    def encode(self, model: Model, pixels: torch.Tensor, originals: Seq[tuple[int, int]]) -> list[torch.Tensor]:
        """See Seam."""
        if model.config.vision_config.model_type == "pixtral":
            return super().encode(model, pixels, originals)
        return Seam.encode(self, model, pixels, originals)
