from __future__ import annotations

from itertools import starmap

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN

from opsin.engine.local.linears import NOTHING, Activation, LinearThen, Then, activation_of, replace_linears


class Mlp(nn.Module):
    """As vision encoders of Transformers are written."""

    def __init__(self, activation: str) -> None:
        super().__init__()
        self.fc1, self.activation_fn, self.fc2 = nn.Linear(8, 16), ACT2FN[activation], nn.Linear(16, 8)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.activation_fn(self.fc1(rows)))


@pytest.mark.parametrize(
    ("activation", "expected"),
    [("gelu", "gelu"), ("gelu_pytorch_tanh", "gelu_tanh"), ("quick_gelu", None), ("silu", None), ("gelu_10", None)],
)
@torch.inference_mode()
def test_the_gelu_between_two_layers_moves_into_the_first(activation: str, expected: Activation | None):
    torch.manual_seed(0)
    mlp, rows = Mlp(activation), 20 * torch.randn(5, 8)
    before = mlp(rows)
    assert replace_linears(mlp, LinearThen) == 2
    asked = [module.then for module in mlp.modules() if isinstance(module, LinearThen)]
    assert asked == [Then(expected), NOTHING]
    assert torch.allclose(mlp(rows), before, atol=1e-6)


@torch.inference_mode()
def test_what_follows_a_layer_goes_along_when_it_is_replaced():
    linears = [nn.Linear(8, 4), nn.Linear(8, 4, bias=False)]
    thens = [Then(activation="silu"), Then(combine="mul")]
    model = nn.ModuleList(starmap(LinearThen, zip(linears, thens, strict=True)))
    seen: list[tuple[nn.Linear, Then]] = []
    assert replace_linears(model, lambda linear, then: seen.append((linear, then)) or nn.Identity()) == 2
    assert [then for _, then in seen] == thens
    assert all(one.weight is linear.weight for (one, _), linear in zip(seen, linears, strict=True))


@pytest.mark.parametrize("combine", ["add", "mul"])
@torch.inference_mode()
def test_a_layer_adds_or_multiplies_what_it_is_given(combine: str):
    linear, rows, other = nn.Linear(8, 4), torch.randn(3, 8), torch.randn(3, 4)
    wanted = {"add": other + linear(rows), "mul": other * linear(rows)}[combine]
    then = Then(combine="add") if combine == "add" else Then(combine="mul")
    assert torch.equal(LinearThen(linear, then)(rows, other), wanted)


def test_an_activation_with_weights_is_none_of_the_known():
    """Its weights are of the model's dtype, which points in float32 do not fit."""
    assert activation_of(nn.PReLU().bfloat16()) is None
