"""A folder with a tiny model of each family that the local engine serves, and the processor that belongs to it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoModelForImageTextToText, PreTrainedTokenizerFast

from tests import tokenizers
from tests.tiny_families import FAMILIES, VISION
from tests.tokenizers import CHATML, TokenizerKind
from tests.unit.vision.oracles import of_transformers

SIDE = {"height": 32, "width": 32}
INTERNVL = replace(tokenizers.INTERNVL, template=CHATML % "<IMG_CONTEXT>\n")
"""With the template of checkpoints in Transformers' own layout, whose processor writes the markers."""


@dataclass(frozen=True)
class Case:
    """One family.

    ``image_processor`` and ``processor`` are module, class and arguments; ``saved`` is processor_config.json.
    ``named`` are tokens that its tokenizer knows by name, ``ids`` fields of config.json that hold their ids.
    ``counts_pictures``: its processor has to be told which pictures belong to one request.
    """

    model_type: str
    tokenizer: TokenizerKind
    image_processor: tuple[str, str, dict[str, Any]]
    processor: tuple[str, str, dict[str, Any]]
    saved: dict[str, Any] = field(default_factory=dict[str, Any])
    named: dict[str, str] = field(default_factory=dict[str, str])
    ids: dict[str, str] = field(default_factory=dict[str, str])
    config: Callable[[Any], None] = lambda config: None
    counts_pictures: bool = False


@dataclass(frozen=True)
class Checkpoint:
    """``processor`` is the family's own, with Pillow as its backend."""

    folder: Path
    model: Any
    processor: Any
    tokenizer: Any


def build(case: Case, folder: Path) -> Checkpoint:
    """Writes the folder."""
    tokenizer = _tokenizer(case, folder)
    config = FAMILIES[case.model_type].config()
    case.config(config)
    for name, token in case.ids.items():
        setattr(config, name, tokenizer.convert_tokens_to_ids(token))
    text = config.get_text_config()
    text.vocab_size, text.max_position_embeddings, text.eos_token_id = len(tokenizer), 512, len(tokenizer) - 1
    model = _model(config, len(tokenizer) - 1)
    model.save_pretrained(folder)
    module, name, arguments = case.image_processor
    image_processor = getattr(of_transformers(module), name)(**arguments)
    image_processor.save_pretrained(folder)
    (folder / "processor_config.json").write_text(json.dumps(case.saved))
    return Checkpoint(folder, model, _processor(case, image_processor, tokenizer), tokenizer)


def _tokenizer(case: Case, folder: Path) -> Any:
    (folder / "tokenizer.json").write_text(case.tokenizer.to_json())
    named = cast("Any", PreTrainedTokenizerFast)(
        tokenizer_file=str(folder / "tokenizer.json"),
        extra_special_tokens=case.named,
        chat_template=case.tokenizer.template,
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"extra_special_tokens": case.named}))
    (folder / "chat_template.jinja").write_text(case.tokenizer.template)
    return named


def _model(config: Any, eos: int) -> Any:
    torch.manual_seed(0)
    model = cast("Any", AutoModelForImageTextToText.from_config(config, dtype=torch.float32)).eval()
    with torch.no_grad():
        parameters: list[torch.Tensor] = list(model.parameters())
        for parameter in parameters:
            if parameter.ndim >= 2:
                parameter.normal_(std=0.2)
    model.generation_config.eos_token_id = eos
    return model


def _processor(case: Case, image_processor: Any, tokenizer: Any) -> Any:
    """Without its constructor, which wants parts for videos, and with them torchvision."""
    module, name, attributes = case.processor
    kind = getattr(of_transformers(module), name)
    processor = object.__new__(kind)
    parts = {
        "image_processor": image_processor,
        "tokenizer": tokenizer,
        "video_processor": None,
        "audio_tokenizer": None,
        "chat_template": case.tokenizer.template,
    }
    tokens = {
        f"{name}_id": tokenizer.convert_tokens_to_ids(token)
        for name, token in attributes.items()
        if name.endswith("_token")
    }
    for name, value in {**parts, **tokens, **attributes}.items():
        setattr(processor, name, value)
    return processor


_QWEN_IDS = {
    "image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>", "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}  # fmt: skip
_QWEN_TOKENS = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
_GEMMA_TOKENS = {
    "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>",
}  # fmt: skip
_PIXTRAL_TOKENS = {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}


def _qwen(model_type: str, module: str, kind: str) -> Case:
    return Case(
        model_type,
        tokenizers.QWEN,
        (
            "qwen2_vl.image_processing_pil_qwen2_vl", "Qwen2VLImageProcessorPil",
            {"patch_size": 8, "merge_size": 2, "size": {"shortest_edge": 256, "longest_edge": 4096}},
        ),
        (module, kind, _QWEN_TOKENS),
        ids=_QWEN_IDS,
    )  # fmt: skip


def _pixtral(model_type: str, merge: int, config: Callable[[Any], None] = lambda config: None) -> Case:
    sizes = {"patch_size": 8, "spatial_merge_size": merge}
    return Case(
        model_type,
        tokenizers.PIXTRAL,
        ("pixtral.image_processing_pil_pixtral", "PixtralImageProcessorPil",
         {"patch_size": 8, "size": {"longest_edge": 64}}),
        ("pixtral.processing_pixtral", "PixtralProcessor", {**sizes, **_PIXTRAL_TOKENS}),
        saved={**sizes, **_PIXTRAL_TOKENS},
        ids={"image_token_id": "[IMG]"},
        config=config,
    )  # fmt: skip


def _with_pixtral_tower(config: Any) -> None:
    kind = of_transformers("pixtral.configuration_pixtral").PixtralVisionConfig
    config.vision_config = kind(**{**VISION, "image_size": 64, "head_dim": 16})
    config.vision_feature_layer, config.vision_feature_select_strategy = -1, "full"


_LLAVA_VIEW = {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
_CANVASES = [[32, 64], [64, 32], [64, 64]]
_ONEVISION = {
    "num_image_tokens": 16, "vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_9",
}  # fmt: skip

CASES: Mapping[str, Case] = {
    "gemma3": Case(
        "gemma3",
        tokenizers.GEMMA3,
        ("gemma3.image_processing_pil_gemma3", "Gemma3ImageProcessorPil", {"size": SIDE}),
        (
            "gemma3.processing_gemma3", "Gemma3Processor",
            {
                "image_seq_length": 4, "boi_token": "<start_of_image>", "image_token": "<start_of_image>",
                "full_image_sequence": f"\n\n<start_of_image>{'<image_soft_token>' * 4}<end_of_image>\n\n",
            },
        ),
        saved={"image_seq_length": 4},
        named=_GEMMA_TOKENS,
        ids={
            "image_token_id": "<image_soft_token>", "boi_token_index": "<start_of_image>",
            "eoi_token_index": "<end_of_image>",
        },
    ),
    "internvl": Case(
        "internvl",
        INTERNVL,
        ("got_ocr2.image_processing_pil_got_ocr2", "GotOcr2ImageProcessorPil",
         {"size": SIDE, "crop_to_patches": True, "max_patches": 4}),
        (
            "internvl.processing_internvl", "InternVLProcessor",
            {
                "image_seq_length": 4, "image_token": "<IMG_CONTEXT>", "start_image_token": "<img>",
                "end_image_token": "</img>", "video_token": "<video>",
                "multimodal_pattern": re.compile("(?P<image><IMG_CONTEXT>)|(?P<video><video>)"),
            },
        ),
        saved={"image_seq_length": 4},
        ids={"image_token_id": "<IMG_CONTEXT>"},
    ),
    "llava": Case(
        "llava",
        tokenizers.LLAVA,
        ("clip.image_processing_pil_clip", "CLIPImageProcessorPil", {"size": {"shortest_edge": 32}, "crop_size": SIDE}),
        ("llava.processing_llava", "LlavaProcessor", {"image_token": "<image>", **_LLAVA_VIEW}),
        saved=_LLAVA_VIEW,
        ids={"image_token_id": "<image>"},
    ),
    "llava_next": Case(
        "llava_next",
        tokenizers.LLAVA,
        ("llava_next.image_processing_pil_llava_next", "LlavaNextImageProcessorPil",
         {"size": {"shortest_edge": 32}, "crop_size": SIDE, "image_grid_pinpoints": _CANVASES}),
        ("llava_next.processing_llava_next", "LlavaNextProcessor", {"image_token": "<image>", **_LLAVA_VIEW}),
        saved=_LLAVA_VIEW,
        ids={"image_token_id": "<image>"},
    ),
    "llava_onevision": Case(
        "llava_onevision",
        tokenizers.LLAVA,
        ("llava_onevision.image_processing_pil_llava_onevision", "LlavaOnevisionImageProcessorPil",
         {"size": SIDE, "image_grid_pinpoints": _CANVASES}),
        (
            "llava_onevision.processing_llava_onevision", "LlavaOnevisionProcessor",
            {"image_token": "<image>", "video_token": "<video>", **_ONEVISION},
        ),
        saved=_ONEVISION,
        ids={"image_token_id": "<image>"},
        counts_pictures=True,
    ),
    "llava with Pixtral's encoder": _pixtral("llava", 1, _with_pixtral_tower),
    "mistral3": _pixtral("mistral3", 2),
    "qwen2_vl": _qwen("qwen2_vl", "qwen2_vl.processing_qwen2_vl", "Qwen2VLProcessor"),
    "qwen2_5_vl": _qwen("qwen2_5_vl", "qwen2_5_vl.processing_qwen2_5_vl", "Qwen2_5_VLProcessor"),
    "qwen3_vl": _qwen("qwen3_vl", "qwen3_vl.processing_qwen3_vl", "Qwen3VLProcessor"),
}  # fmt: skip
"""By name; Idefics3 is the demo model's family, see test_fidelity."""
