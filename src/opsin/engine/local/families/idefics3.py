"""Idefics3 and SmolVLM: tiles of all requests on one batch row."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from opsin.engine.local.families.seam import Seam
from opsin.engine.local.loading import Model


class Idefics3(Seam):
    """See the module."""

    def encode(self, model: Model, pixels: torch.Tensor, originals: Seq[tuple[int, int]]) -> list[torch.Tensor]:
        """See Seam."""
        tiles = pixels.flatten(0, 1)
        # Transformers drops a tile that is 0.0 everywhere as padding, in silence, which would shift the features of all
        # tiles behind it. uint8 reaches 0.0 only where a mean is a multiple of 1/255; one tiny value keeps the tile.
        tiles[(tiles == 0).flatten(1).all(dim=1), 0, 0, 0] = torch.finfo(tiles.dtype).tiny
        features: torch.Tensor = model.model.get_image_features(pixel_values=tiles[None]).pooler_output[0]
        return list(features.chunk(len(pixels)))
