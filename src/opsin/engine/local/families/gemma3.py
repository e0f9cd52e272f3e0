"""Gemma 3: positions of one picture see each other in both directions; some layers look back over a window only."""

from __future__ import annotations

import torch

from opsin.engine.local.families.internvl import InternVL
from opsin.engine.local.families.seam import Mask
from opsin.engine.local.loading import Model
from opsin.engine.local.sequence import Sequence


class Gemma3(InternVL):
    """Features in InternVL's form. See the module."""

    def chunk_mask(self, model: Model, sequence: Sequence, start: int, stop: int, device: torch.device) -> Mask:
        """See Seam. The scheduler does not cut a picture, so all of it is in the chunk or before it."""
        queries, keys = torch.arange(start, stop, device=device)[:, None], torch.arange(stop, device=device)
        units = torch.tensor(sequence.unit_indices(stop), device=device)
        same_picture = (units[start:, None] == units) & (units >= 0)
        causal = keys <= queries
        return _masks(causal | same_picture, (causal & (keys > queries - _window(model))) | same_picture)

    def decode_mask(self, model: Model, lengths: torch.Tensor, longest: int) -> Mask:
        """See Seam."""
        keys, ends = torch.arange(longest, device=lengths.device), lengths[:, None]
        seen = keys < ends
        return _masks(seen[:, None], (seen & (keys >= ends - _window(model)))[:, None])


def _masks(full: torch.Tensor, sliding: torch.Tensor) -> dict[str, torch.Tensor]:
    """From (queries, keys) or (n, 1, keys) to what the library asks for."""
    shaped = [mask[None, None] if mask.ndim == 2 else mask[:, None] for mask in (full, sliding)]
    return {"full_attention": shaped[0], "sliding_attention": shaped[1]}


def _window(model: Model) -> int:
    return model.config.get_text_config().sliding_window
