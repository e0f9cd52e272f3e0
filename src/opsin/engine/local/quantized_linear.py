"""Linear layers in int8 on a CPU: weights rounded once per output channel, inputs anew in every call (W8A8, dynamic).

Nothing has to be calibrated, so no picture from outside is needed and none is clipped. An input has one scale for all
of its rows: whoever shares a call shares the scale, so what is kept apart has to be run apart. oneDNN's operators, as
``torch.compile`` uses them; they are not public. Only unsigned inputs are fast (signed ones take a reference path).
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import nn

from opsin.engine.local.linears import NOTHING, Then, replace_linears

_cpu: Any = torch.cpu  # what it can do is not public either
_onednn: Any = torch.ops.onednn  # its operators have no types

_LEVELS = 254
"""Of 256: an end of the range and the zero point are both rounded, by half a level each."""
_BLOCK = 2**16  # values; 256 KiB as float32
_ROUNDING = 1.5 * 2.0**23
"""Added to a float32, it leaves the nearest integer in the lowest bits."""


class RoundedInput:
    """Levels of an input of several layers that run one after the other: of query, key and value it is the same."""

    def __init__(self) -> None:
        self._input: torch.Tensor | None = None
        self._levels: tuple[torch.Tensor, float, int]

    def levels(self, input: torch.Tensor, size: int) -> tuple[torch.Tensor, float, int]:
        """Rounded once as long as it is the same tensor. The last one is kept until another one comes."""
        if self._input is not input:
            self._input, self._levels = input, _levels(input.reshape(-1, size))
        return self._levels


class QuantizedLinear(nn.Module):
    """Stands for a Linear that will only be run. Input and output are floats of one type; inputs are never changed."""

    def __init__(self, linear: nn.Linear, then: Then = NOTHING, source: RoundedInput | None = None) -> None:
        super().__init__()
        self._source = source or RoundedInput()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach().float()
        self._scales = weight.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / 127
        rounded = (weight / self._scales[:, None]).round().to(torch.int8)
        self._packed: torch.Tensor = _onednn.qlinear_prepack(rounded, None)
        self._zeros = torch.zeros(self.out_features, dtype=torch.int32)
        bias = cast("torch.Tensor | None", linear.bias)  # declared as never absent
        self._bias = None if bias is None else bias.detach().float()
        self._activation = then.coarse.for_onednn
        self._combine = then.combine

    def forward(self, input: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        """From (…, in_features) to (…, out_features); ``other`` is what a sum or product is with."""
        rounded = self._source.levels(input, self.in_features)
        if other is None:
            product = self.product(*rounded, input.dtype)
        else:
            product = self._combined(*rounded, other.reshape(-1, self.out_features))
        return product.view(*input.shape[:-1], self.out_features)

    def product(self, levels: torch.Tensor, scale: float, zero: int, dtype: torch.dtype) -> torch.Tensor:
        """Of rows whose values are (level - ``zero``) * ``scale``; (n, out_features) of ``dtype``."""
        return _onednn.qlinear_pointwise(
            levels, scale, zero, self._packed, self._scales, self._zeros, self._bias, 1.0, 0, dtype, *self._activation
        )

    def _combined(self, levels: torch.Tensor, scale: float, zero: int, other: torch.Tensor) -> torch.Tensor:
        return _onednn.qlinear_pointwise.binary(
            levels, scale, zero, self._packed, self._scales, self._zeros, other, self._bias, 1.0, 0, other.dtype,
            1.0, 0, self._combine, 1.0, *self._activation,
        )  # fmt: skip


def _levels(rows: torch.Tensor) -> tuple[torch.Tensor, float, int]:
    """(n, size) of uint8, with the scale and the zero point: x is about (level - zero) * scale.

    In blocks that stay in the cache: what lies between the two passes takes four times the memory of the result. Bits
    are cut off integers in half of the time that a conversion of floats to uint8 takes.
    """
    low, high = (end.item() for end in rows.aminmax())
    low, high = min(low, 0.0), max(high, 0.0)  # 0 is a level
    scale = (high - low) / _LEVELS or 1.0
    zero = round(-low / scale)
    middle = torch.tensor(zero + _ROUNDING)
    levels = torch.empty(rows.shape, dtype=torch.uint8)
    size = max(1, _BLOCK // rows.shape[1])
    for start in range(0, len(rows), size):
        block = rows[start : start + size].float()
        levels[start : start + size] = torch.add(middle, block, alpha=1 / scale).view(torch.int32)
    return levels, scale, zero


def can_quantize() -> bool:
    """Whether this CPU multiplies int8 and this build of torch has the operators."""
    try:
        return bool(_cpu._is_vnni_supported()) and bool(_onednn.qlinear_prepack)
    except (AttributeError, RuntimeError):
        return False


def quantize(model: nn.Module) -> int:
    """Replaces every Linear of a model; returns how many."""
    source = RoundedInput()
    return replace_linears(model, partial(QuantizedLinear, source=source))
