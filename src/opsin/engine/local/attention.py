"""Attention of the text model over the slot cache, registered with Transformers under ``opsin_slots``.

For one token, ``enable_gqa``, which Transformers picks where there is no mask, is five times slower on a CPU than need
be; there the query heads that share a key are packed together, which of one token is a view. Of more tokens a CPU's
kernel reads shared keys where they are: 192 behind 500 take 0.51 ms of a layer so, and 0.61 packed together (Xeon with
AMX, two threads). No mask is made by the library for this name: what is given is used, and None means causal from the
first position.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface

NAME = "opsin_slots"

_BLOCK = 256
"""Queries that share one reach over keys, where more of them stand behind others."""

Mask = torch.Tensor | dict[str, torch.Tensor] | None
"""Of one forward: (n, 1, queries, keys), or one per kind of layer; None is plainly causal."""


def use_in_text_model(model: Any) -> None:
    """The vision encoder keeps its own attention."""
    AttentionInterface.register(NAME, attend)
    model.config.get_text_config()._attn_implementation = NAME


def decode_mask(lengths: torch.Tensor, longest: int) -> torch.Tensor:
    """bool (n, 1, 1, longest): row i sees its first ``lengths[i]`` positions."""
    return (torch.arange(longest, device=lengths.device) < lengths[:, None])[:, None, None]


def chunk_mask(start: int, stop: int, device: torch.device) -> torch.Tensor | None:
    """bool (1, 1, stop - start, stop), causal; None for a chunk that starts at 0, whose attention is plainly causal."""
    if start == 0:
        return None
    queries, keys = torch.arange(start, stop, device=device), torch.arange(stop, device=device)
    return (keys <= queries[:, None])[None, None]


def additive(mask: Mask, dtype: torch.dtype) -> Mask:
    """The same as summands, 0 and -inf, which the kernel would make of a bool one in every layer anew.

    Measured on a Xeon, one thread: for a token of 8 sequences of 300 positions 210 instead of 285 µs per layer, for 512
    tokens behind 512 others 6.2 instead of 7.8 ms.
    """
    if mask is None:
        return None
    if isinstance(mask, dict):
        return {kind: _summands(one, dtype) for kind, one in mask.items()}
    return _summands(mask, dtype)


def _summands(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """From (n, heads, tokens, size), and keys and values (n, kv heads, length, size), to (n, tokens, heads, size)."""
    return _attended(query, key, value, attention_mask, scaling), None


def _attended(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float | None
) -> torch.Tensor:
    num, heads, tokens, size = query.shape
    kv_heads = key.shape[1]
    together = heads // kv_heads
    if query.is_cpu and tokens > 1:
        attended = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=together > 1
        )
        return attended.transpose(1, 2).contiguous()
    if mask is None and tokens > 1:
        key, value = (each.repeat_interleave(together, dim=1) for each in (key, value))
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
        return attended.transpose(1, 2).contiguous()
    if mask is not None and tokens > 1:
        mask = mask.repeat(1, 1, together, 1)
    packed = query.reshape(num, kv_heads, together * tokens, size)
    attended = functional.scaled_dot_product_attention(packed, key, value, attn_mask=mask, scale=scaling)
    return attended.reshape(num, heads, tokens, value.shape[3]).transpose(1, 2).contiguous()


def attend_causally(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float | None = None
) -> torch.Tensor:
    """As ``attend``, where nobody sees what comes behind it: keys that a block of queries cannot see are left out.

    The kernel computes them and masks them away. In the shape of SmolVLM-256M with six layers, 2,048 tokens behind as
    many others take 490 ms instead of 680, and 1,101 behind 64 take 110 instead of 150 (Xeon, one thread).
    """
    tokens, length = query.shape[2], key.shape[2]
    if mask is None or tokens <= _BLOCK:
        return _attended(query, key, value, mask, scaling)
    parts: list[torch.Tensor] = []
    for start in range(0, tokens, _BLOCK):
        stop = min(start + _BLOCK, tokens)
        seen = length - tokens + stop
        seen_mask = mask[:, :, start:stop, :seen]
        parts.append(_attended(query[:, :, start:stop], key[:, :, :seen], value[:, :, :seen], seen_mask, scaling))
    return torch.cat(parts, dim=1)
