"""The library's own layers say what is right."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import AutoModel, Cache, DynamicCache, Gemma3TextConfig, LlamaConfig, MistralConfig, Qwen2Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from opsin.engine.local import attention
from opsin.engine.local.decoder_stack import DecoderStack, stack
from opsin.engine.local.slot_views import ChunkView
from opsin.engine.local.slots import SlotCache

SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip
KINDS: dict[str, Any] = {
    "llama": LlamaConfig(**SIZES),
    "llama with biases": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama, positions scaled": LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
    ),
    "mistral": MistralConfig(**SIZES, sliding_window=None),
    "qwen2": Qwen2Config(**{name: size for name, size in SIZES.items() if name != "head_dim"}),
}
OTHERS: dict[str, Any] = {
    "some layers see a window": Gemma3TextConfig(**SIZES),
    "all layers see a window": MistralConfig(**SIZES, sliding_window=16),
}


class Special(nn.Linear):
    """A Linear with a behaviour of its own, as quantized ones have."""


def model(config: Any) -> nn.Module:
    torch.manual_seed(0)
    text = cast("nn.Module", AutoModel.from_config(config, dtype=torch.float32)).eval()
    for parameter in text.parameters():
        nn.init.normal_(parameter, std=0.2)
    attention.use_in_text_model(text)
    return text


def hidden(text: nn.Module, ids: torch.Tensor, cache: Cache, mask: torch.Tensor | None = None) -> torch.Tensor:
    start = cache.get_seq_length()
    positions = torch.arange(start, start + ids.shape[1])[None].expand(len(ids), -1)
    return text(input_ids=ids, position_ids=positions, attention_mask=mask, cache=cache).last_hidden_state


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_a_prompt_and_the_tokens_behind_it_come_out_as_from_the_librarys_layers(kind: str):
    own = model(KINDS[kind])
    stacked = copy.deepcopy(own)
    assert stack(stacked) == SIZES["num_hidden_layers"]
    caches = DynamicCache(), DynamicCache()
    for length in (7, 1, 1):
        ids = torch.randint(0, 64, (2, length), generator=torch.Generator().manual_seed(length))
        one, other = hidden(own, ids, caches[0]), hidden(stacked, ids, caches[1])
        assert one.std() > 0.1
        assert float((one - other).abs().max()) < 1e-4


@torch.inference_mode()
def test_of_a_prompt_the_last_layer_makes_the_last_position_and_everybodys_keys():
    text = model(KINDS["llama"])
    stack(text)
    slots, wanted = SlotCache(64), DynamicCache()
    slots.open("prompt", 12)
    for start, stop in ((0, 7), (7, 12)):
        ids = torch.randint(0, 64, (1, stop - start), generator=torch.Generator().manual_seed(stop))
        summands = attention.additive(attention.chunk_mask(start, stop, torch.device("cpu")), torch.float32)
        assert not isinstance(summands, dict)
        whole = hidden(text, ids, wanted, summands)
        got = hidden(text, ids, ChunkView(slots, 0, start), summands)
        assert float((whole - got)[:, -1].abs().max()) < 1e-4
        assert float((whole - got)[:, :-1].abs().max()) > 0.1
    for layer, (keys, values) in zip(cast("Any", wanted).layers, slots.copy_out("prompt", 12), strict=True):
        assert torch.allclose(keys, layer.keys, atol=1e-4)
        assert torch.allclose(values, layer.values, atol=1e-4)


@pytest.mark.parametrize("shape", [(9, 1, 48), (1, 9, 48), (2, 2000, 48)])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 0.004)])
@torch.inference_mode()
def test_rows_are_divided_by_their_root_mean_square(shape: tuple[int, int, int], dtype: torch.dtype, bound: float):
    text = model(KINDS["llama"])
    stack(text)
    rows = (3 * torch.randn(shape)).to(dtype)
    epsilon = cast("float", KINDS["llama"].rms_norm_eps)
    wanted = functional.rms_norm(rows.double(), (48,), eps=epsilon)
    got = cast("torch.Tensor", cast("Any", text).layers[0].layers[0].mlp_norm(rows))
    assert got.dtype is dtype
    error = (got.double() - wanted).square().mean() / wanted.square().mean()
    assert float(error) < bound**2


@pytest.mark.parametrize("kind", OTHERS)
def test_other_kinds_of_layers_stay_the_librarys(kind: str):
    text = model(OTHERS[kind])
    assert stack(text) == 0
    assert not any(isinstance(part, DecoderStack) for part in text.modules())


def test_weights_that_are_no_plain_linears_stay_the_librarys():
    text = cast("Any", model(KINDS["llama"]))
    text.layers[1].mlp.down_proj = Special(80, 48)
    assert stack(text) == 0


def test_there_is_no_second_copy_of_the_weights():
    text = model(KINDS["llama"])
    before = sum(parameter.numel() for parameter in text.parameters())
    stack(text)
    assert sum(parameter.numel() for parameter in text.parameters()) <= before


def test_layers_of_a_checkpoints_own_code_stay_as_they_are(monkeypatch: pytest.MonkeyPatch):
    text = model(KINDS["llama"])
    monkeypatch.setattr(LlamaDecoderLayer, "__module__", "transformers_modules.somebody.modeling_llama")
    assert stack(text) == 0
