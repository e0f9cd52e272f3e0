"""The seam between the runner and a family, with the answers that most families share.

``get_image_features`` encodes; forward takes the result back as ``mm_encoder_outputs``. Features of a unit are kept as
one tensor (…, tokens, hidden size), so that any range of tokens can be cut out of it. Positions are always explicit.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, cast

import torch
from transformers.modeling_outputs import BaseModelOutputWithPooling

from opsin.engine.local import attention
from opsin.engine.local.loading import Model
from opsin.engine.local.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Positions:
    """Of a prompt: ``prompt`` (axes, tokens). The token at index i behind it stands at i + ``delta`` on every axis."""

    prompt: torch.Tensor
    delta: int

    def of(self, start: int, stop: int) -> torch.Tensor:
        """(axes, stop - start)."""
        length = self.prompt.shape[1]
        if stop <= length:
            return self.prompt[:, start:stop]
        beyond = torch.arange(max(start, length), stop, device=self.prompt.device) + self.delta
        return torch.cat([self.prompt[:, start:], beyond.expand(self.prompt.shape[0], -1)], dim=1)


Mask = attention.Mask
"""Of one forward, bool."""


class Seam:
    """The answers that most families share: features as a list, one axis of positions, causal attention."""

    def encode(self, model: Model, pixels: torch.Tensor, originals: Seq[tuple[int, int]]) -> list[torch.Tensor]:
        """Features of each unit, (…, tokens, hidden size). ``pixels`` is (units, tiles of a unit, 3, height, width).

        ``originals`` is width and height of each unit's picture.
        """
        return list(model.model.get_image_features(pixel_values=pixels.flatten(0, 1)).pooler_output)

    def encoder_outputs(self, rows: torch.Tensor) -> BaseModelOutputWithPooling:
        """What forward takes for the image tokens among its ids; ``rows`` is (…, tokens, hidden size)."""
        return pooled([rows])

    def positions(self, model: Model, sequence: Sequence, device: torch.device) -> Positions:
        """Of a sequence's prompt."""
        return Positions(torch.arange(len(sequence.prompt_ids), device=device)[None], 0)

    def position_ids(self, positions: torch.Tensor) -> torch.Tensor:
        """From (axes, n, tokens) to the argument of forward."""
        return positions[0]

    def chunk_mask(self, model: Model, sequence: Sequence, start: int, stop: int, device: torch.device) -> Mask:
        """What positions ``start`` to ``stop`` of a sequence may look at."""
        return attention.chunk_mask(start, stop, device)

    def decode_mask(self, model: Model, lengths: torch.Tensor, longest: int) -> Mask:
        """What the newest token of each sequence may look at."""
        return attention.decode_mask(lengths, longest)


def pooled(features: object) -> BaseModelOutputWithPooling:
    """The library declares one tensor, and takes whatever its encoder gives, mostly a list of them."""
    return BaseModelOutputWithPooling(pooler_output=cast("Any", features))
