"""The library's own layers say what is right."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from transformers import CLIPVisionConfig, CLIPVisionModel, SiglipVisionConfig, SiglipVisionModel
from transformers.models.idefics3.configuration_idefics3 import Idefics3VisionConfig
from transformers.models.idefics3.modeling_idefics3 import Idefics3VisionTransformer
from transformers.models.siglip.modeling_siglip import SiglipEncoderLayer
from transformers.models.smolvlm.configuration_smolvlm import SmolVLMVisionConfig
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMVisionTransformer

from opsin.engine.local.encoder_stack import EncoderLayer, stack_encoder

SIZES: dict[str, Any] = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
KINDS: dict[str, tuple[Any, Any]] = {
    "clip": (CLIPVisionModel, CLIPVisionConfig(**SIZES)),
    "siglip": (SiglipVisionModel, SiglipVisionConfig(**SIZES, vision_use_head=False)),
    "idefics3": (Idefics3VisionTransformer, Idefics3VisionConfig(**SIZES)),
    "smolvlm": (SmolVLMVisionTransformer, SmolVLMVisionConfig(**SIZES)),
}


class Special(nn.Linear):
    """A Linear with a behaviour of its own, as quantized ones have."""


def encoder(kind: str) -> Any:
    torch.manual_seed(0)
    make, config = KINDS[kind]
    config._attn_implementation = "sdpa"
    model = make(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_features_come_out_as_from_the_librarys_layers(kind: str):
    own = encoder(kind)
    stacked = copy.deepcopy(own)
    assert stack_encoder(stacked) == SIZES["num_hidden_layers"]
    pixels = torch.randn(2, 3, 32, 32)
    one, other = own(pixels).last_hidden_state, stacked(pixels).last_hidden_state
    assert one.std() > 0.1
    assert float((one - other).abs().max()) < 1e-4


@pytest.mark.parametrize("kind", ["clip", "siglip"])
@torch.inference_mode()
def test_the_library_records_what_each_layer_gives(kind: str):
    own = encoder(kind)
    stacked = copy.deepcopy(own)
    stack_encoder(stacked)
    pixels = torch.randn(2, 3, 32, 32)
    one, other = (model(pixels, output_hidden_states=True).hidden_states for model in (own, stacked))
    assert len(one) == len(other) == SIZES["num_hidden_layers"] + 1
    assert all(float((mine - yours).abs().max()) < 1e-4 for mine, yours in zip(one, other, strict=True))


@torch.inference_mode()
def test_hidden_patches_are_not_seen():
    own = encoder("idefics3")
    stacked = copy.deepcopy(own)
    stack_encoder(stacked)
    shown = torch.ones(2, 4, 4, dtype=torch.bool)
    shown[1, 2:] = False
    pixels = torch.randn(2, 3, 32, 32)
    one, other = (model(pixels, patch_attention_mask=shown).last_hidden_state for model in (own, stacked))
    whole = stacked(pixels).last_hidden_state
    assert float((one - other)[shown.flatten(1)].abs().max()) < 1e-4
    assert float((whole - other)[1, :8].abs().max()) > 0.01


def test_weights_that_are_no_plain_linears_stay_the_librarys():
    model = encoder("siglip")
    layers = [module for module in model.modules() if type(module).__name__ == "SiglipEncoderLayer"]
    layers[1].mlp.fc2 = Special(80, 48)
    assert stack_encoder(model) == 2
    assert sum(isinstance(module, EncoderLayer) for module in model.modules()) == 2


def test_a_layer_of_that_name_in_a_checkpoints_own_code_stays_as_it_is(monkeypatch: pytest.MonkeyPatch):
    model = encoder("siglip")
    monkeypatch.setattr(SiglipEncoderLayer, "__module__", "transformers_modules.somebody.modeling_siglip")
    assert stack_encoder(model) == 0
