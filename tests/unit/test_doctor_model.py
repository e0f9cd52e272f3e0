"""Counts and pixels of every family that Transformers can construct, beside its own processor (PIL backend)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from opsin.doctor_model import Renderer, Verdict, compare
from opsin.settings import Settings
from opsin.vision.registry import FAMILIES
from opsin.vision.size import Size
from tests.checkpoints import tokenizer
from tests.unit.vision.oracles import of_transformers

SMALLER = tuple(
    Size(*sides) for sides in ((1, 1), (3, 3), (7, 5), (64, 48), (800, 16), (16, 800), (9, 700), (1300, 1000))
)
"""Of 12 megapixels, or of 100 : 1 for those that scale the shorter side, some families take seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model folder without weights: ``processor`` is a class for the whole of it, where it needs no torchvision."""

    model_type: str
    module: str
    images: Mapping[str, Any] = field(default_factory=dict[str, Any])
    processor: str | None = None
    said: Mapping[str, Any] = field(default_factory=dict[str, Any])
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    renderer: Renderer = Renderer.RECIPE
    tells_tokens: bool = True

    def save(self, folder: Path) -> Path:
        module = of_transformers(self.module)
        kind = next(name for name in module.__all__ if name.endswith("ImageProcessorPil"))
        images = getattr(module, kind)(**self.images)
        (folder / "config.json").write_text(json.dumps({"model_type": self.model_type, **self.config}))
        if self.processor is None:
            images.save_pretrained(folder)
            (folder / "processor_config.json").write_text(json.dumps(self.said))
        else:
            package = self.module.partition(".")[0]
            whole = getattr(of_transformers(f"{package}.processing_{package}"), self.processor)
            whole(images, tokenizer(), **self.said).save_pretrained(folder)
        return folder


def square(side: int) -> dict[str, int]:
    return {"height": side, "width": side}


CLIP = {"size": {"shortest_edge": 336}, "crop_size": square(336)}
LLAVA = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
QWEN = "qwen2_vl.image_processing_pil_qwen2_vl"
PIXTRAL = "pixtral.image_processing_pil_pixtral"
GLM = "glm4v.image_processing_pil_glm4v"
GEMMA = "gemma3.image_processing_pil_gemma3"
ONEVISION = "llava_onevision.image_processing_pil_llava_onevision"

CHECKPOINTS = {
    "SmolVLM": Checkpoint(
        model_type="smolvlm",
        module="idefics3.image_processing_pil_idefics3",
        images={"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}},
        processor="Idefics3Processor",
        said={"image_seq_len": 64},
    ),
    "Qwen2-VL": Checkpoint(model_type="qwen2_vl", module=QWEN),
    "Qwen2.5-VL": Checkpoint(model_type="qwen2_5_vl", module=QWEN, images={"min_pixels": 3136, "max_pixels": 12845056}),
    "Qwen3-VL": Checkpoint(
        model_type="qwen3_vl",
        module=QWEN,
        images={"patch_size": 16, "size": {"shortest_edge": 65536, "longest_edge": 16777216}},
    ),
    "GLM-4.1V": Checkpoint(model_type="glm4v", module=GLM),
    "InternVL3": Checkpoint(
        model_type="internvl",
        module="got_ocr2.image_processing_pil_got_ocr2",
        images={"size": square(448)},
        said={"image_seq_length": 256},
        tells_tokens=False,
    ),
    "LLaVA-1.5": Checkpoint(
        model_type="llava",
        module="llava.image_processing_pil_llava",
        images=CLIP,
        processor="LlavaProcessor",
        said=LLAVA,
    ),
    "LLaVA-1.5, squared": Checkpoint(
        model_type="llava",
        module="llava.image_processing_pil_llava",
        images={**CLIP, "do_pad": True},
        processor="LlavaProcessor",
        said=LLAVA,
    ),
    "LLaVA-NeXT-Interleave": Checkpoint(
        model_type="llava",
        module="siglip.image_processing_pil_siglip",
        images={"size": square(384)},
        said={"patch_size": 14},
        tells_tokens=False,
    ),
    "LLaVA-NeXT": Checkpoint(
        model_type="llava_next",
        module="llava_next.image_processing_pil_llava_next",
        images=CLIP,
        processor="LlavaNextProcessor",
        said=LLAVA,
    ),
    "LLaVA-OneVision": Checkpoint(model_type="llava_onevision", module=ONEVISION, tells_tokens=False),
    "Llama 3.2 Vision": Checkpoint(
        model_type="mllama",
        module="mllama.image_processing_pil_mllama",
        images={"size": square(560)},
        config={"vision_config": {"patch_size": 14}},
    ),
    "Pixtral": Checkpoint(
        model_type="llava",
        module=PIXTRAL,
        said={"patch_size": 16, "spatial_merge_size": 1},
        config={"vision_config": {"model_type": "pixtral"}},
        tells_tokens=False,
    ),
    "Mistral Small 3": Checkpoint(
        model_type="mistral3",
        module=PIXTRAL,
        images={"size": {"longest_edge": 1540}, "patch_size": square(28)},
        said={"patch_size": 14, "spatial_merge_size": 2},
        tells_tokens=False,
    ),
    "Gemma 3": Checkpoint(model_type="gemma3", module=GEMMA, images={"size": square(896)}, tells_tokens=False),
    "Gemma 4": Checkpoint(model_type="gemma4", module="gemma4.image_processing_pil_gemma4"),
    "Chameleon": Checkpoint(
        model_type="chameleon",
        module="chameleon.image_processing_pil_chameleon",
        processor="ChameleonProcessor",
        said={"image_seq_length": 1024},
    ),
    "MiniCPM-V 4.6": Checkpoint(
        model_type="minicpmv4_6",
        module="minicpmv4_6.image_processing_pil_minicpmv4_6",
        renderer=Renderer.PROCESSOR,
        tells_tokens=False,
    ),
}

_NO_PIL_BACKEND = {"llama4"}
_NOT_IN_TRANSFORMERS = {"deepseek_vl_v2", "internvl_chat", "kimi_vl", "minicpmv", "molmo"}
_SAME_CODE = {
    *("gemma4_unified", "glm46v", "glm4v_moe", "idefics3", "minicpmv4_7"),
    *("qwen3_5", "qwen3_5_moe", "qwen3_vl_moe"),
}


def test_every_family_is_here_or_has_a_reason() -> None:
    here = {checkpoint.model_type for checkpoint in CHECKPOINTS.values()}
    assert here | _NO_PIL_BACKEND | _NOT_IN_TRANSFORMERS | _SAME_CODE == set(FAMILIES)


@pytest.mark.parametrize("checkpoint", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_no_family_differs_from_its_own_processor(checkpoint: Checkpoint, tmp_path: Path) -> None:
    settings = Settings(model=str(checkpoint.save(tmp_path)))
    found = list(compare(settings, SMALLER))
    assert not [row for row in found if row.verdict is Verdict.DIFFERENT]
    served = [row for row in found if row.ours]
    assert {row.renderer for row in served} == {checkpoint.renderer}
    told = {row.theirs is not None and row.theirs.image_tokens is not None for row in served}
    assert told == {checkpoint.tells_tokens}
    assert len(served) >= len(SMALLER) - 2
