from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers.activations import ACT2FN

from opsin.engine.local.linears import Gelu, replace_linears


class Recorded(nn.Module):
    """A Linear, and what was asked of it."""

    def __init__(self, linear: nn.Linear, gelu: Gelu | None) -> None:
        super().__init__()
        self.linear, self.gelu = linear, gelu

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        product = self.linear(rows)
        return product if self.gelu is None else functional.gelu(product, approximate=self.gelu)


class Mlp(nn.Module):
    """As vision encoders of Transformers are written."""

    def __init__(self, activation: str) -> None:
        super().__init__()
        self.fc1, self.activation_fn, self.fc2 = nn.Linear(8, 16), ACT2FN[activation], nn.Linear(16, 8)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.activation_fn(self.fc1(rows)))


@pytest.mark.parametrize(
    ("activation", "expected"),
    [("gelu", "none"), ("gelu_pytorch_tanh", "tanh"), ("quick_gelu", None), ("silu", None)],
)
@torch.inference_mode()
def test_the_gelu_between_two_layers_moves_into_the_first(activation: str, expected: Gelu | None):
    torch.manual_seed(0)
    mlp, rows = Mlp(activation), torch.randn(5, 8)
    before = mlp(rows)
    assert replace_linears(mlp, Recorded) == 2
    asked = [module.gelu for module in mlp.modules() if isinstance(module, Recorded)]
    assert asked == [expected, None]
    assert torch.allclose(mlp(rows), before, atol=1e-6)
