from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from opsin.engine.local import packed_linear
from opsin.engine.local.packed_linear import PackedLinear, can_pack, pack

pytestmark = pytest.mark.skipif(not can_pack(), reason="this CPU or this build of torch has no bfloat16 products")


class Special(nn.Linear):
    """A Linear with a behaviour of its own, as quantized ones have."""


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 32), nn.Sequential(nn.Linear(32, 64, bias=False)), Special(64, 8)).bfloat16()


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (3, 5), (2, 130)])
@torch.inference_mode()
def test_results_are_those_of_a_linear(shape: tuple[int, int]):
    for bias in (True, False):
        linear = nn.Linear(48, 32, bias=bias).bfloat16()
        rows = torch.randn(*shape, 48).bfloat16()
        assert torch.allclose(PackedLinear(linear)(rows), linear(rows), rtol=0.02, atol=0.02)


@torch.inference_mode()
def test_every_plain_linear_is_replaced():
    one = model()
    rows = torch.randn(4, 48).bfloat16()
    before = one(rows)
    assert pack(one) == 2
    assert [type(module) for module in one.modules() if isinstance(module, nn.Linear)] == [Special]
    assert torch.allclose(one(rows), before, rtol=0.02, atol=0.02)


def test_where_the_operators_are_missing_a_model_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(packed_linear, "_mkldnn", torch.ops.nowhere)
    one = model()
    assert pack(one) == 0
    assert [type(module) for module in one.modules() if isinstance(module, nn.Linear)] == [
        nn.Linear,
        nn.Linear,
        Special,
    ]
    assert "stay unpacked" in caplog.text


@torch.inference_mode()
def test_the_gelu_of_a_bfloat16_product_is_right_to_its_rounding():
    torch.manual_seed(0)
    linear, rows = nn.Linear(48, 32).bfloat16(), 4 * torch.randn(200, 48).bfloat16()
    wanted = functional.gelu(linear(rows).float(), approximate="tanh")
    assert torch.allclose(PackedLinear(linear, "tanh")(rows).float(), wanted, rtol=0.01, atol=1e-3)
