from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from opsin.engine.local import packed_linear
from opsin.engine.local.linears import LinearThen, Then
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
    assert torch.allclose(PackedLinear(linear, Then("gelu_tanh"))(rows).float(), wanted, rtol=0.01, atol=1e-3)


@pytest.mark.parametrize("then", [Then("silu"), Then("gelu"), Then(combine="add"), Then(combine="mul")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_what_follows_a_layer_is_done_with_it(then: Then, dtype: torch.dtype, bias: bool):
    torch.manual_seed(0)
    linear, rows, other = nn.Linear(48, 32, bias=bias).to(dtype), torch.randn(2, 9, 48), torch.randn(2, 9, 32)
    given = [rows.to(dtype)] + ([other.to(dtype)] if then.combine else [])
    wanted = LinearThen(linear.float(), then)(*(one.float() for one in given))
    got = PackedLinear(linear.to(dtype), then)(*given)
    assert got.dtype is dtype
    bound = 0.02 if dtype is torch.bfloat16 else 1e-5
    assert torch.allclose(got.float(), wanted, rtol=bound, atol=bound)


@pytest.mark.parametrize("may_idle", [True, False])
@pytest.mark.parametrize(("inputs", "rows"), [(48, 500), (48, 208), (32, 500)])
@torch.inference_mode()
def test_layers_that_narrow_run_in_blocks_where_threads_would_idle(
    monkeypatch: pytest.MonkeyPatch, may_idle: bool, inputs: int, rows: int
):
    monkeypatch.setattr(packed_linear, "_threads_may_idle", lambda: may_idle)
    torch.manual_seed(0)
    linear, input = nn.Linear(inputs, 32).bfloat16(), torch.randn(2, rows // 2, inputs).bfloat16()
    layer, sizes = PackedLinear(linear), list[int]()
    product = layer._product  # pyright: ignore[reportPrivateUsage] # how it is cut shows nowhere else

    def noted(input: torch.Tensor, other: torch.Tensor | None) -> torch.Tensor:
        sizes.append(input.numel() // inputs)
        return product(input, other)

    monkeypatch.setattr(layer, "_product", noted)
    assert torch.allclose(layer(input), linear(input), rtol=0.02, atol=0.02)
    assert sizes == ([208, 208, 84] if may_idle and inputs > 32 and rows > 208 else [rows])


@pytest.mark.parametrize("then", [Then(), Then("gelu"), Then(combine="add")])
@torch.inference_mode()
def test_in_blocks_the_product_is_the_same(monkeypatch: pytest.MonkeyPatch, then: Then):
    torch.manual_seed(0)
    linear = nn.Linear(48, 32).bfloat16()
    given = [torch.randn(2, 300, 48).bfloat16()] + ([torch.randn(2, 300, 32).bfloat16()] if then.combine else [])
    wanted = PackedLinear(linear, then)(*given)
    asked: list[tuple[int, ...]] = []

    def always(*shape: int) -> bool:
        asked.append(shape)
        return True

    monkeypatch.setattr(packed_linear, "faster_in_blocks", always)
    assert torch.allclose(PackedLinear(linear, then, is_tuned=True)(*given), wanted, rtol=0.01, atol=0.01)
    assert asked == [(512, 48, 32, torch.get_num_threads())]


def test_pictures_of_any_size_cost_a_layer_six_trials(monkeypatch: pytest.MonkeyPatch):
    tried = set[tuple[int, ...]]()
    monkeypatch.setattr(packed_linear, "faster_in_blocks", lambda *shape: tried.add(shape))  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType] # of ints
    layer = PackedLinear(nn.Linear(8, 8).bfloat16(), is_tuned=True)
    for rows in range(100, 3000, 100):
        layer(torch.ones(rows, 8, dtype=torch.bfloat16))
    assert {rows for rows, *_ in tried} == {512, 768, 1024, 1280, 1536, 1792}


@pytest.mark.parametrize("whole_s", [0.1, 0.3])
def test_what_neighbours_take_is_none_of_the_trial(monkeypatch: pytest.MonkeyPatch, whole_s: float):
    """The clock sees each block wait for others; the thread's own time does not."""
    own_s, clock_s = [0.0], [0.0]

    class Operators:
        def _reorder_linear_weight(self, weight: torch.Tensor) -> torch.Tensor:
            return weight

        def _linear_pointwise(self, block: torch.Tensor, *_: object) -> None:
            own_s[0] += whole_s if len(block) == 1024 else 0.05
            clock_s[0] += 10 if len(block) < 1024 else 0

    monkeypatch.setattr(packed_linear, "_mkldnn", Operators())
    monkeypatch.setattr(packed_linear.time, "thread_time", lambda: own_s[0])
    monkeypatch.setattr(packed_linear.time, "perf_counter", lambda: own_s[0] + clock_s[0])
    assert packed_linear.faster_in_blocks.__wrapped__(1024, 8, 8, 2) is (whole_s > 4 * 0.05)


def test_one_thread_has_nobody_to_leave_idle():
    assert not packed_linear.faster_in_blocks(1024, 3072, 768, 1)
