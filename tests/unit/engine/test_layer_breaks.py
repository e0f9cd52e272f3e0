from __future__ import annotations

import time
from contextvars import ContextVar

import pytest
import torch
from torch import nn

from opsin.engine.local.layer_breaks import LayerBreaks

seen: ContextVar[str] = ContextVar("seen", default="nothing")


@pytest.fixture
def layers() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(2, 2) for _ in range(3)))


def test_a_break_before_each_layer_and_only_in_the_block(layers: nn.Sequential):
    breaks, taken = LayerBreaks(layers), list[int]()
    expected = layers(torch.ones(1, 2))
    with breaks.taken_by(lambda: taken.append(1)):
        assert torch.equal(layers(torch.ones(1, 2)), expected)
    layers(torch.ones(1, 2))
    assert len(taken) == 3


def test_nobody_has_to_take_them(layers: nn.Sequential):
    breaks = LayerBreaks(layers)
    with breaks.taken_by(None):
        layers(torch.ones(1, 2))
    assert breaks.taken_s == 0


def test_the_time_they_took_is_told_anew_for_each_block(layers: nn.Sequential, monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def take() -> None:
        now[0] += 1.0

    breaks = LayerBreaks(layers)
    for _ in range(2):
        with breaks.taken_by(take):
            layers(torch.ones(1, 2))
        assert breaks.taken_s == 3.0


def test_what_fails_in_a_break_is_raised_and_the_next_run_has_none(layers: nn.Sequential):
    def bug() -> None:
        raise KeyError

    breaks = LayerBreaks(layers)
    with pytest.raises(KeyError), breaks.taken_by(bug):
        layers(torch.ones(1, 2))
    layers(torch.ones(1, 2))


def test_what_the_encoder_keeps_in_its_context_is_not_seen(layers: nn.Sequential):
    """Transformers keeps there which outputs of layers it collects, and would collect the text model's."""
    breaks, told = LayerBreaks(layers), list[str]()
    token = seen.set("hidden states")
    with breaks.taken_by(lambda: told.append(seen.get())):
        layers(torch.ones(1, 2))
    seen.reset(token)
    assert told == ["nothing"] * 3
