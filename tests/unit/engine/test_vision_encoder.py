from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from opsin.core.errors import ConfigError
from opsin.engine.local import vision_encoder
from opsin.engine.local.quantized_linear import QuantizedLinear, can_quantize
from opsin.engine.local.vision_encoder import VisionArithmetic, float32_is_faster, prepare, vision_layers

CPU = torch.device("cpu")


class Base(nn.Module):
    """A model as Transformers lays it out."""

    def __init__(self) -> None:
        super().__init__()
        self.vision_model = nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), nn.Linear(8, 8))
        self.connector = nn.Linear(8, 8)
        self.text_model = nn.Linear(8, 8)


class Whole(nn.Module):
    """With a head."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Base()
        self.bfloat16()


@pytest.mark.parametrize(("is_faster", "expected"), [(True, torch.float32), (False, torch.bfloat16)])
def test_auto_is_float32_where_that_is_faster(is_faster: bool, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vision_encoder, "float32_is_faster", lambda: is_faster)
    whole = Whole()
    assert prepare(whole, "auto", CPU, torch.bfloat16) == VisionArithmetic(expected)
    assert {parameter.dtype for parameter in whole.model.vision_model.parameters()} == {expected}
    assert whole.model.connector.weight.dtype is expected
    assert whole.model.text_model.weight.dtype is torch.bfloat16


def test_what_is_asked_for_is_not_tried(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vision_encoder, "float32_is_faster", lambda: pytest.fail("tried"))
    assert prepare(Whole(), "float32", CPU, torch.bfloat16).dtype is torch.float32
    assert prepare(Whole(), "bfloat16", CPU, torch.bfloat16).dtype is torch.bfloat16
    assert prepare(Whole().float(), "auto", CPU, torch.float32).dtype is torch.float32


def test_the_layers_of_the_encoder_are_those_of_its_lists_alone():
    whole = Whole()
    blocks, text = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)), nn.ModuleList([nn.Linear(8, 8)])
    whole.model.vision_model.append(nn.Sequential())
    whole.model.vision_model[-1].add_module("layers", blocks)
    whole.model.text_model.add_module("layers", text)
    assert list(vision_layers(whole)) == list(blocks)


def test_features_of_patches_lie_as_layer_norms_read_them():
    whole = Whole()
    prepare(whole, "float32", CPU, torch.bfloat16)
    patches = whole.model.vision_model[0](torch.rand(1, 3, 16, 16))
    assert patches.flatten(2).transpose(1, 2).is_contiguous()


@pytest.mark.skipif(not can_quantize(), reason="this CPU has no fast int8")
def test_int8_is_for_the_encoder_and_not_for_the_connector(caplog: pytest.LogCaptureFixture):
    whole = Whole()
    with caplog.at_level(logging.INFO):
        assert prepare(whole, "int8", CPU, torch.float32).name == "int8"
    assert isinstance(whole.model.vision_model[1], QuantizedLinear)
    assert type(whole.model.connector) is nn.Linear
    assert "runs in int8" in caplog.text


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_int8_that_the_machine_does_not_have_is_refused(device: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vision_encoder, "can_quantize", lambda: device != "cpu")
    found = "this CPU has none" if device == "cpu" else "the model runs on cuda"
    with pytest.raises(ConfigError, match=f"int8 needs a CPU with VNNI instructions, and {found}"):
        prepare(Whole(), "int8", torch.device(device), torch.bfloat16)


def test_the_trial_ends_with_an_answer():
    assert float32_is_faster() in (True, False)


@pytest.mark.parametrize("faster", [torch.bfloat16, torch.float32])
def test_what_neighbours_take_is_none_of_the_trial(monkeypatch: pytest.MonkeyPatch, faster: torch.dtype):
    """They come whenever the faster one runs; the thread's own time does not show them."""
    own_s, neighbours_s = [0.0], [0.0]

    def product(rows: torch.Tensor, _: torch.Tensor) -> None:
        own_s[0] += 0.1 if rows.dtype is faster else 0.2
        neighbours_s[0] += 10 if rows.dtype is faster else 0

    monkeypatch.setattr(vision_encoder.functional, "linear", product)
    monkeypatch.setattr(vision_encoder.time, "thread_time", lambda: own_s[0])
    monkeypatch.setattr(vision_encoder.time, "perf_counter", lambda: own_s[0] + neighbours_s[0])
    assert float32_is_faster() is (faster is torch.float32)
