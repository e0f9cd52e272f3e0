from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from opsin.engine.local.linears import Then
from opsin.engine.local.quantized_linear import QuantizedLinear, RoundedInput, can_quantize, quantize

pytestmark = pytest.mark.skipif(not can_quantize(), reason="this CPU or this build of torch has no fast int8")


@given(
    rows=st.integers(1, 40),
    offset=st.sampled_from([-30.0, -1.0, 0.0, 5.0]),
    spread=st.sampled_from([1e-4, 1.0, 300.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    bias=st.booleans(),
)
@settings(max_examples=40, deadline=None)
@torch.inference_mode()
def test_results_are_within_the_rounding_of_input_and_weight(
    rows: int, offset: float, spread: float, dtype: torch.dtype, bias: bool
):
    torch.manual_seed(rows)
    linear = nn.Linear(48, 32, bias=bias).to(dtype)
    inputs = (torch.randn(2, rows, 48) * spread + offset).to(dtype)
    wanted, got = linear(inputs).float(), QuantizedLinear(linear)(inputs)
    assert got.dtype is dtype
    # Half a level of each factor, at its worst in all 48 places, and the rounding of the output's own type.
    level = float(max(inputs.max(), 0) - min(inputs.min(), 0)) / 254
    largest, weight = float(inputs.abs().max()), float(linear.weight.abs().max())
    bound = 48 * (level * weight + largest * weight / 127) / 2 + torch.finfo(dtype).eps * float(wanted.abs().max())
    assert float((got.float() - wanted).abs().max()) <= bound


@pytest.mark.parametrize("value", [0.0, 3.0, -3.0])
@torch.inference_mode()
def test_an_input_that_is_one_value_everywhere(value: float):
    linear = nn.Linear(16, 8)
    inputs = torch.full((4, 16), value)
    assert torch.allclose(QuantizedLinear(linear)(inputs), linear(inputs), atol=0.05)


@torch.inference_mode()
def test_a_gelu_is_computed_too():
    torch.manual_seed(0)
    linear, inputs = nn.Linear(64, 32), torch.randn(9, 64)
    wanted = functional.gelu(linear(inputs), approximate="tanh")
    assert torch.allclose(QuantizedLinear(linear, Then("gelu_tanh"))(inputs), wanted, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_a_residual_is_added_too(dtype: torch.dtype):
    torch.manual_seed(0)
    linear, inputs = nn.Linear(64, 32).to(dtype), torch.randn(2, 9, 64).to(dtype)
    residual = torch.randn(2, 9, 32).to(dtype)
    before = residual.clone()
    got = QuantizedLinear(linear, Then(combine="add"))(inputs, residual)
    assert got.dtype is dtype
    assert torch.allclose(got, residual + linear(inputs), atol=0.05)
    assert torch.equal(residual, before)


@torch.inference_mode()
def test_an_outlier_is_not_clipped():
    linear, inputs = nn.Linear(64, 32), torch.randn(9, 64)
    inputs[3, 5] = 1000.0
    wanted, got = linear(inputs)[3], QuantizedLinear(linear)(inputs)[3]
    assert torch.allclose(got, wanted, rtol=0.05, atol=8.0)


def test_every_plain_linear_is_replaced():
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8)), nn.LayerNorm(8))
    assert quantize(model) == 2
    assert not any(isinstance(module, nn.Linear) for module in model.modules())


@torch.inference_mode()
def test_layers_that_share_an_input_round_it_once_and_no_other():
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(48, 32), nn.Linear(48, 16), nn.Linear(48, 8)])
    first, second = torch.randn(5, 48), 10 * torch.randn(5, 48)
    wanted = [linear(rows) for rows in (first, second) for linear in model]
    assert quantize(model) == 3
    got = [linear(rows) for rows in (first, second) for linear in model]
    assert all(torch.allclose(one, other, rtol=0.05, atol=0.5) for one, other in zip(got, wanted, strict=True))


@torch.inference_mode()
def test_an_input_is_rounded_to_the_nearest_level():
    rows = torch.linspace(-1.0, 1.0, 255)[None]
    levels, scale, zero = RoundedInput().levels(rows, 255)
    assert levels.flatten().tolist() == list(range(255))
    assert (scale, zero) == (pytest.approx(2 / 254), 127)
