"""The layers of vision encoders of SigLIP's and CLIP's kind, on a CPU: fewer products, and each with what follows it.

Query, key and value are one product, and residuals are added while a product is still in the cache. The library's
encoder stays, with other layers inside its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from opsin.engine.local.linears import LinearThen, Then, activation_of, is_librarys, joined

LIKE_SIGLIP = frozenset({"CLIPEncoderLayer", "Idefics3EncoderLayer", "SiglipEncoderLayer", "SmolVLMEncoderLayer"})
"""Classes of layers that differ in nothing but sizes and the activation."""


class EncoderLayer(nn.Module):
    """One layer of such an encoder, from the weights of the library's."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self._head_size: int = attention.head_dim
        self._scaling: float = attention.scale
        self.attention_norm, self.mlp_norm = layer.layer_norm1, layer.layer_norm2
        self.qkv = joined(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out = LinearThen(attention.out_proj, Then(combine="add"))
        formula = activation_of(mlp.activation_fn)
        self.up = LinearThen(mlp.fc1, Then(activation=formula))
        self.activation: nn.Module = nn.Identity() if formula else mlp.activation_fn
        self.down = LinearThen(mlp.fc2, Then(combine="add"))

    def forward(self, hidden: torch.Tensor, attention_mask: torch.Tensor | None = None, **_: Any) -> torch.Tensor:
        """(n, patches, hidden size) to the same; what the mask hides is not seen."""
        hidden = self.out(self._attended(self.attention_norm(hidden), attention_mask), hidden)
        return self.down(self.activation(self.up(self.mlp_norm(hidden))), hidden)

    def _attended(self, rows: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        num, patches, size = rows.shape
        heads = self.qkv(rows).view(num, patches, 3, -1, self._head_size).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*heads, attn_mask=mask, scale=self._scaling)
        return attended.transpose(1, 2).reshape(num, patches, size)


def stack_encoder(model: nn.Module) -> int:
    """Gives the layers of a vision encoder another inside, where they are of the kind and plain; returns how many."""
    fitting = [module for module in model.modules() if _is_like_siglip(module)]
    for layer in fitting:
        _fill(layer, EncoderLayer(layer))
    return len(fitting)


def _fill(layer: Any, inside: EncoderLayer) -> None:
    """The layer stays, because the library records what layers of its class give (LLaVA reads the last but one)."""
    for name, _ in list(layer.named_children()):
        delattr(layer, name)
    layer.inside, layer.forward = inside, inside.forward


def _is_like_siglip(module: nn.Module) -> bool:
    linears = [part for part in module.modules() if isinstance(part, nn.Linear)]
    is_kind = type(module).__name__ in LIKE_SIGLIP and is_librarys(module)
    return is_kind and all(type(linear) is nn.Linear for linear in linears)
