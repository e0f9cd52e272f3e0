"""Which family counts for a model type, and which can be served here. A new family is a new entry and a file beside."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from opsin.core.errors import ConfigError
from opsin.models.card import ModelCard
from opsin.models.vision_files import VisionFiles
from opsin.vision import (
    chameleon,
    deepseek_vl2,
    gemma3,
    gemma4,
    glm4v,
    idefics3,
    internvl,
    kimi_vl,
    llama4,
    llava,
    llava_next,
    llava_onevision,
    minicpmv,
    mllama,
    molmo,
    pixtral,
    qwen_vl,
)
from opsin.vision.plan import Family, NativeFamily
from opsin.vision.size import Size

FromFiles = Callable[[VisionFiles], Family]


def family_for(files: VisionFiles, *, otherwise: FromFiles | None = None) -> Family:
    """Who counts a checkpoint's pictures, with its parameters.

    ``otherwise`` counts model types without a rule here: ``estimated``, whose counts are labelled, or the local
    engine's own counting with Transformers. Without it they are refused.

    Raises:
        ConfigError: nobody counts this model type, or the checkpoint's values contradict its family's rule.
    """
    build = FAMILIES.get(files.model_type, otherwise)
    if build is None:
        supported = ", ".join(sorted(FAMILIES))
        raise ConfigError(f"model_type {files.model_type}: no visual-token rule; supported: {supported}")
    return build(files)


def native_family_for(card: ModelCard) -> NativeFamily:
    """The family of a checkpoint that the local engine can serve.

    Raises:
        ConfigError: it serves no such model type, or the checkpoint's values contradict the family's rule, or no recipe
            does what its image processor does.
    """
    build = _NATIVE.get(card.model_type)
    if build is None:
        raise ConfigError(
            f"model_type {card.model_type}: not served by the local engine, which serves {', '.join(sorted(_NATIVE))}; "
            "serve it by another engine and give its address: --upstream URL"
        )
    family = build(card)
    if family.recipe(_ANY_SIZE) is None:
        raise ConfigError(
            f"{card.vision.image_processor.name}: resizes, crops or cuts pictures as the local engine cannot; "
            "serve it by another engine and give its address: --upstream URL"
        )
    return family


def is_native(model_type: str) -> bool:
    """Whether the local engine can serve such checkpoints."""
    return model_type in _NATIVE


FAMILIES: Mapping[str, FromFiles] = {
    "chameleon": chameleon.from_files,
    "deepseek_vl_v2": deepseek_vl2.from_files,
    "gemma3": gemma3.from_files,
    "gemma4": gemma4.from_files,
    "gemma4_unified": gemma4.from_files,
    "glm46v": glm4v.from_files,
    "glm4v": glm4v.from_files,
    "glm4v_moe": glm4v.from_files,
    "idefics3": idefics3.from_files,
    "internvl": internvl.from_files,
    "internvl_chat": internvl.from_chat_files,
    "kimi_vl": kimi_vl.from_files,
    "llama4": llama4.from_files,
    "llava": llava.from_files,
    "llava_next": llava_next.from_files,
    "llava_onevision": llava_onevision.from_files,
    "minicpmv": minicpmv.from_files,
    "minicpmv4_6": minicpmv.from_block_files,
    "minicpmv4_7": minicpmv.from_block_files,
    "mistral3": pixtral.from_files,
    "mllama": mllama.from_files,
    "molmo": molmo.from_files,
    "qwen2_5_vl": qwen_vl.from_files,
    "qwen2_vl": qwen_vl.from_files,
    "qwen3_5": qwen_vl.from_files,
    "qwen3_5_moe": qwen_vl.from_files,
    "qwen3_vl": qwen_vl.from_files,
    "qwen3_vl_moe": qwen_vl.from_files,
    "smolvlm": idefics3.from_files,
}

_NATIVE: Mapping[str, Callable[[ModelCard], NativeFamily]] = {
    "gemma3": gemma3.from_card,
    "idefics3": idefics3.from_card,
    "internvl": internvl.from_card,
    "llava": llava.from_card,
    "llava_next": llava_next.from_card,
    "llava_onevision": llava_onevision.from_card,
    "mistral3": lambda card: pixtral.from_files(card.vision),
    "qwen2_5_vl": qwen_vl.from_card,
    "qwen2_vl": qwen_vl.from_card,
    "qwen3_vl": qwen_vl.from_card,
    "smolvlm": idefics3.from_card,
}

_ANY_SIZE = Size(640, 480)
