"""From uint8 tiles to what an image processor would have given the model."""

from __future__ import annotations

import torch

from opsin.engine.local.messages import Tiles

Channels = tuple[float, float, float]


def pixel_values(tiles: Tiles, mean: Channels, std: Channels, device: torch.device) -> torch.Tensor:
    """uint8 tiles to (num_tiles, 3, height, width) float32: (x / 255 - mean) / std, per channel.

    Bit-equal to Transformers' PIL image processors, which rescale in float64 and round to float32.
    """
    # bytearray: torch wants memory it may write to.
    flat = torch.frombuffer(bytearray(tiles.pixels), dtype=torch.uint8)
    pixels = flat.view(tiles.num_tiles, tiles.height, tiles.width, 3).to(device).permute(0, 3, 1, 2)
    # Channel by channel: with the three of a pixel side by side each operation takes them one at a time.
    planes = pixels.to(torch.float32, memory_format=torch.contiguous_format)
    per_channel = torch.tensor((mean, std), device=device).view(2, 3, 1, 1)
    return planes.div_(255).sub_(per_channel[0]).div_(per_channel[1])
