"""Linear layers whose weights lie in memory as oneDNN multiplies them, on a CPU.

``torch.nn.functional.linear`` arranges a bfloat16 weight anew in every call, which is most of its time when there are
few rows: measured on a Zen 4, one thread, 576 → 1536, CPU time of 1, 8 and 64 rows falls from 277, 545 and 2299 µs to
211, 309 and 1971. Products are bit-equal. A GELU behind a layer is computed while the product is still in the cache:
1024 x 768 x 3072 in float32 on a Xeon takes 24 ms instead of 21 and 5. The operators are those that ``torch.compile``
uses; they are not public, so their absence or refusal leaves a model as it is.
"""

from __future__ import annotations

import logging
from typing import Any, cast

import torch
from torch import nn

from opsin.engine.local.linears import Gelu, coarse, replace_linears

logger = logging.getLogger(__name__)

_mkldnn: Any = torch.ops.mkldnn  # its operators have no types


class PackedLinear(nn.Module):
    """Stands for a Linear that will only be run. The weight in its ordinary form is not kept."""

    def __init__(self, linear: nn.Linear, gelu: Gelu | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._packed: torch.Tensor = _mkldnn._reorder_linear_weight(linear.weight.detach())
        bias = cast("torch.Tensor | None", linear.bias)  # declared as never absent
        self._bias = None if bias is None else bias.detach()
        if linear.weight.dtype is torch.bfloat16:
            gelu = coarse(gelu)
        self._post = ("none", [], "") if gelu is None else ("gelu", [], gelu)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """From (…, in_features) to (…, out_features)."""
        return _mkldnn._linear_pointwise(input, self._packed, self._bias, *self._post)


def can_pack() -> bool:
    """Whether this CPU multiplies bfloat16 and this build of torch has the operators."""
    try:
        return torch.backends.mkldnn.is_available() and bool(_mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):
        return False


def pack(model: nn.Module) -> int:
    """Replaces every Linear of a model; returns how many. 0 where this build of torch cannot."""
    try:
        return replace_linears(model, PackedLinear)
    except (AttributeError, RuntimeError) as error:
        logger.warning("linear layers stay unpacked: %s", str(error).partition("\n")[0])
        return 0
