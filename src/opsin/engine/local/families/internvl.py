"""InternVL: features of all tiles are one tensor, and are taken back as one."""

from __future__ import annotations

import torch
from transformers.modeling_outputs import BaseModelOutputWithPooling

from opsin.engine.local.families.seam import Seam, pooled


class InternVL(Seam):
    """See the module."""

    def encoder_outputs(self, rows: torch.Tensor) -> BaseModelOutputWithPooling:
        """See Seam."""
        return pooled(rows[None])
