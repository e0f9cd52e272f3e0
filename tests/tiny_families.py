"""A tiny model of every family that the local engine batches, with random weights, and its inputs for ``generate``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    Gemma3Config,
    Idefics3Config,
    InternVLConfig,
    LlavaConfig,
    LlavaNextConfig,
    LlavaOnevisionConfig,
    Mistral3Config,
    Qwen2_5_VLConfig,
    Qwen2VLConfig,
    Qwen3VLConfig,
)

VOCABULARY, IMAGE, EOS = 96, 90, 91
TEXT = {
    "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
    "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": EOS, "pad_token_id": 0,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """``tiles`` and ``sizes`` are what its pictures may have: how many tiles, and (width, height) of each tile.

    ``pixels_per_token`` gives image tokens, or ``image_tokens`` is all of a picture that was ``original``. ``inputs``
    makes what ``generate`` takes beside ids, from ids (1, n) and each picture's normalised pixels (tiles, 3, height,
    width).
    """

    config: Callable[[], Any]
    tiles: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...]
    pixels_per_token: int
    inputs: Callable[[torch.Tensor, list[torch.Tensor]], dict[str, Any]]
    image_tokens: int | None = None
    original: tuple[int, int] = (0, 0)


def _all_tiles(_: torch.Tensor, pictures: list[torch.Tensor]) -> dict[str, Any]:
    return {"pixel_values": torch.cat(pictures)} if pictures else {}


def _on_one_row(_: torch.Tensor, pictures: list[torch.Tensor]) -> dict[str, Any]:
    return {"pixel_values": torch.cat(pictures)[None]} if pictures else {}


def _with_token_types(ids: torch.Tensor, pictures: list[torch.Tensor]) -> dict[str, Any]:
    return {"token_type_ids": (ids == IMAGE).long(), **_all_tiles(ids, pictures)}


def _padded(_: torch.Tensor, pictures: list[torch.Tensor]) -> dict[str, Any]:
    if not pictures:
        return {}
    sizes = [picture.shape[-2:] for picture in pictures]
    height, width = (max(sides) for sides in zip(*sizes, strict=True))
    padded = [
        torch.nn.functional.pad(picture, (0, width - picture.shape[-1], 0, height - picture.shape[-2]))
        for picture in pictures
    ]
    return {"pixel_values": torch.cat(padded), "image_sizes": torch.tensor(sizes)}


def _as_patches(ids: torch.Tensor, pictures: list[torch.Tensor]) -> dict[str, Any]:
    """As ``Qwen2VLImageProcessor`` does: patch 8, merge 2, two frames."""
    types = {"mm_token_type_ids": (ids == IMAGE).long()}
    if not pictures:
        return types
    patches: list[torch.Tensor] = []
    grids: list[tuple[int, int, int]] = []
    for picture in pictures:
        height, width = (side // 8 for side in picture.shape[-2:])
        frames = picture.repeat(2, 1, 1, 1)
        cells = frames.reshape(1, 2, 3, height // 2, 2, 8, width // 2, 2, 8).permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
        patches.append(cells.reshape(height * width, -1))
        grids.append((1, height, width))
    return {"pixel_values": torch.cat(patches), "image_grid_thw": torch.tensor(grids), **types}


def _on_canvases(_: torch.Tensor, pictures: list[torch.Tensor]) -> dict[str, Any]:
    if not pictures:
        return {}
    width, height = ORIGINAL
    return {"pixel_values": torch.stack(pictures), "image_sizes": torch.tensor([(height, width)] * len(pictures))}


def _each_alone(ids: torch.Tensor, pictures: list[torch.Tensor]) -> dict[str, Any]:
    """As if each were the only one of its request."""
    return {**_on_canvases(ids, pictures), "batch_num_images": [1] * len(pictures)} if pictures else {}


def _made(config: Any, **values: object) -> Callable[[], Any]:
    """The library's own signatures are incomplete."""
    return lambda: config(**values, tie_word_embeddings=False)


_MROPE = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
_QWEN_TOKENS = {
    "image_token_id": IMAGE, "video_token_id": 92, "vision_start_token_id": 93, "vision_end_token_id": 94,
}  # fmt: skip
_QWEN_VISION = {
    "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "patch_size": 8, "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}  # fmt: skip
ORIGINAL = (60, 22)
"""On a canvas of two tiles, side by side: of its four rows of patches the outer two are padding."""
_CANVASES = {
    "image_grid_pinpoints": [[32, 64], [64, 32], [64, 64]], "image_token_index": IMAGE, "image_token_id": IMAGE,
}  # fmt: skip
_VARIABLE = ((32, 32), (32, 48), (64, 32))

FAMILIES: Mapping[str, Family] = {
    "gemma3": Family(
        _made(
            Gemma3Config,
            text_config={
                **TEXT, "model_type": "gemma3_text", "sliding_window": 8, "query_pre_attn_scalar": 16,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            vision_config={**VISION, "model_type": "siglip_vision_model"},
            mm_tokens_per_image=4, image_token_index=IMAGE, image_token_id=IMAGE, boi_token_index=93,
            eoi_token_index=94,
        ),
        (1,), ((32, 32),), 256, _with_token_types,
    ),
    "idefics3": Family(
        _made(
            Idefics3Config, text_config=TEXT, vision_config=VISION, scale_factor=2, image_token_id=IMAGE,
            pad_token_id=0,
        ),
        (1, 3), ((32, 32),), 256, _on_one_row,
    ),
    "internvl": Family(
        _made(
            InternVLConfig, text_config={**TEXT, "model_type": "qwen2"},
            vision_config={**VISION, "image_size": [32, 32], "patch_size": [8, 8]}, image_token_id=IMAGE,
        ),
        (1, 3), ((32, 32),), 256, _all_tiles,
    ),
    "llava": Family(
        _made(
            LlavaConfig, text_config=TEXT, vision_config={**VISION, "model_type": "clip_vision_model"},
            image_token_index=IMAGE, image_token_id=IMAGE, image_seq_length=16,
        ),
        (1,), ((32, 32),), 64, _all_tiles,
    ),
    "llava_next": Family(
        _made(
            LlavaNextConfig, text_config=TEXT, vision_config={**VISION, "model_type": "clip_vision_model"}, **_CANVASES,
        ),
        (3,), ((32, 32),), 64, _on_canvases, 16 + 2 * 9, ORIGINAL,
    ),
    "llava_onevision": Family(
        _made(
            LlavaOnevisionConfig, text_config={**TEXT, "model_type": "qwen2"},
            vision_config={**VISION, "model_type": "siglip_vision_model", "vision_use_head": False}, **_CANVASES,
        ),
        (3,), ((32, 32),), 64, _each_alone, 16 + 2 * 9, ORIGINAL,
    ),
    "mistral3": Family(
        _made(
            Mistral3Config, text_config={**TEXT, "model_type": "mistral", "sliding_window": None},
            vision_config={**VISION, "model_type": "pixtral", "image_size": 64, "head_dim": 16},
            image_token_index=IMAGE, image_token_id=IMAGE, spatial_merge_size=2, multimodal_projector_bias=False,
        ),
        (1,), _VARIABLE, 256, _padded,
    ),
    "qwen2_vl": Family(
        _made(
            Qwen2VLConfig, text_config={**TEXT, "model_type": "qwen2_vl_text", "rope_parameters": _MROPE},
            vision_config={**_QWEN_VISION, "embed_dim": 32, "mlp_ratio": 2}, **_QWEN_TOKENS,
        ),
        (1,), _VARIABLE, 256, _as_patches,
    ),
    "qwen2_5_vl": Family(
        _made(
            Qwen2_5_VLConfig, text_config={**TEXT, "model_type": "qwen2_5_vl_text", "rope_parameters": _MROPE},
            vision_config={**_QWEN_VISION, "out_hidden_size": 32, "window_size": 32, "fullatt_block_indexes": [1]},
            **_QWEN_TOKENS,
        ),
        (1,), _VARIABLE, 256, _as_patches,
    ),
    "qwen3_vl": Family(
        _made(
            Qwen3VLConfig, text_config={**TEXT, "model_type": "qwen3_vl_text", "rope_parameters": _MROPE},
            vision_config={
                **_QWEN_VISION, "out_hidden_size": 32, "num_position_embeddings": 64,
                "deepstack_visual_indexes": [0, 1],
            },
            **_QWEN_TOKENS,
        ),
        (1,), _VARIABLE, 256, _as_patches,
    ),
}  # fmt: skip
"""By model type; SmolVLM is Idefics3 in all that matters here."""
