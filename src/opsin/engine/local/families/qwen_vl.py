"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: a picture as a grid of patches, and positions on three axes (M-RoPE).

The encoder's rows and the positions follow from the grid (time, height, width in patches). ``rope_deltas`` of the model
are never read: the last prefill wins there, so every sequence has its own.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any, cast

import torch
from transformers.modeling_outputs import BaseModelOutputWithPooling

from opsin.engine.local.families.seam import Positions, Seam, pooled
from opsin.engine.local.loading import Model
from opsin.engine.local.sequence import Sequence


class QwenVL(Seam):
    """See the module."""

    def encode(self, model: Model, pixels: torch.Tensor, originals: Seq[tuple[int, int]]) -> list[torch.Tensor]:
        """See Seam."""
        return list(_encode(model, pixels).pooler_output)

    def positions(self, model: Model, sequence: Sequence, device: torch.device) -> Positions:
        """See Seam; (3, tokens)."""
        ids = torch.tensor([sequence.prompt_ids], device=device)
        types = torch.zeros_like(ids)
        types[0, list(sequence.image_positions)] = 1
        grids = [_grid(model, width, height) for width, height in sequence.unit_sizes()]
        positions, delta = cast("Any", model.model).get_rope_index(
            ids, types, image_grid_thw=torch.tensor(grids, device=device) if grids else None
        )
        return Positions(positions[:, 0], int(delta))

    def position_ids(self, positions: torch.Tensor) -> torch.Tensor:
        """See Seam."""
        return positions


class Qwen3VL(QwenVL):
    """Qwen3-VL also adds features of inner layers to the first layers of the text model (deepstack)."""

    def encode(self, model: Model, pixels: torch.Tensor, originals: Seq[tuple[int, int]]) -> list[torch.Tensor]:
        """See Seam; (1 + deepstack layers, tokens, hidden size)."""
        output = _encode(model, pixels)
        return [torch.stack(layers) for layers in zip(output.pooler_output, *output.deepstack_features, strict=True)]

    def encoder_outputs(self, rows: torch.Tensor) -> BaseModelOutputWithPooling:
        """See Seam."""
        output = pooled([rows[0]])
        cast("Any", output)["deepstack_features"] = [[layer] for layer in rows[1:]]
        return output


def _encode(model: Model, pixels: torch.Tensor) -> Any:
    pictures = pixels.flatten(0, 1)
    height, width = pictures.shape[-2:]
    grids = torch.tensor([_grid(model, width, height)] * len(pictures), device=pictures.device)
    patches = _patches(model, pictures)
    return model.model.get_image_features(pixel_values=patches, image_grid_thw=grids)


def _grid(model: Model, width: int, height: int) -> tuple[int, int, int]:
    patch: int = model.config.vision_config.patch_size
    return 1, height // patch, width // patch


def _patches(model: Model, pictures: torch.Tensor) -> torch.Tensor:
    """(pictures x grid cells, 3 x frames x patch x patch), in the order of ``Qwen2VLImageProcessor``.

    Patches that are merged into one token follow each other; a still picture stands in every frame of a patch.
    """
    vision = model.config.vision_config
    patch, merge, frames = vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size
    num, channels, height, width = pictures.shape
    cells = pictures.view(
        num, channels, height // patch // merge, merge, patch, width // patch // merge, merge, patch
    ).permute(0, 2, 5, 3, 6, 1, 4, 7)
    cells = cells.reshape(-1, channels, 1, patch, patch).expand(-1, -1, frames, -1, -1)
    return cells.reshape(len(cells), -1)
