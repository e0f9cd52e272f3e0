"""Loads a checkpoint through Transformers: where to, in which dtype, and what can go wrong."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast

import psutil
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.utils import logging as transformers_logging

from opsin.core.errors import ConfigError
from opsin.engine.local import attention, decoder_stack, vision_encoder
from opsin.engine.local.config import LocalEngineConfig
from opsin.engine.local.packed_linear import can_pack, pack
from opsin.engine.local.vision_encoder import VisionArithmetic

logger = logging.getLogger(__name__)


class Output(Protocol):
    """Of a forward: logits (n, kept positions, vocabulary). Of the encoder: features, in the family's own form."""

    logits: torch.Tensor
    pooler_output: Any


class Model(Protocol):
    """What we use of a Transformers model, typed; the library's own signatures are partly unknown."""

    model: Model
    config: Any

    def __call__(self, **inputs: object) -> Output: ...

    def get_image_features(self, **inputs: object) -> Output: ...


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model on its device. It ``packs`` if its text model takes several prompts in one row, see ``PackedView``."""

    model: Model
    device: torch.device
    dtype: torch.dtype
    vision: VisionArithmetic
    memory_share: float | None
    packs: bool

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one position in all layers."""
        text = self.model.config.get_text_config()
        heads: int = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        size: int = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        return 2 * text.num_hidden_layers * heads * size * self.dtype.itemsize

    @property
    def free_bytes(self) -> int:
        """Memory that the device has left, or that its share leaves."""
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            share = int((self.memory_share or 1.0) * total) - torch.cuda.memory_allocated(self.device)
            return max(min(free, share), 0)
        return psutil.virtual_memory().available


def load(config: LocalEngineConfig) -> Loaded:
    """Raises ConfigError if the folder, the device or the installation do not allow it."""
    transformers_logging.disable_progress_bar()
    device = torch.device(choose_device(config.device))
    _limit_memory(config.gpu_memory_utilization, device)
    checkpoint = _load_config(config)
    dtype = choose_dtype(config.dtype, device.type, _dtype_of(checkpoint))
    is_quantized = _is_quantized(checkpoint)
    model = _load_model(config, device, dtype, is_quantized=is_quantized)
    vision, is_stacked = _prepare(model, config, device, dtype, is_quantized=is_quantized)
    return Loaded(model, device, dtype, vision, config.gpu_memory_utilization, packs=is_stacked)


def _limit_memory(share: float | None, device: torch.device) -> None:
    if share is None:
        return
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(share)
    else:
        logger.warning("gpu_memory_utilization has no effect on %s", device.type)


def _load_config(config: LocalEngineConfig) -> Any:
    with _load_errors():
        return cast(
            "Any",  # partly unknown type of the library
            AutoConfig.from_pretrained(
                config.model_path, local_files_only=True, trust_remote_code=config.trust_remote_code
            ),
        )


def _load_model(config: LocalEngineConfig, device: torch.device, dtype: torch.dtype, *, is_quantized: bool) -> Model:
    # Quantized weights cannot all be moved once they are loaded, so they are loaded to where they belong.
    placed = {"device_map": {"": str(device)}} if is_quantized and device.type != "cpu" else {}
    with _load_errors():
        model, report = cast(
            "Any",  # partly unknown type of the library
            AutoModelForImageTextToText.from_pretrained(
                config.model_path,
                dtype=dtype,
                attn_implementation=config.attn_implementation,
                local_files_only=True,
                trust_remote_code=config.trust_remote_code,
                output_loading_info=True,
                **placed,
            ),
        )
        model = (model if is_quantized else model.to(device)).eval()
        attention.use_in_text_model(model)
    missing = sorted(report["missing_keys"])
    if missing:  # the library would fill them at random and go on
        raise ConfigError(f"the checkpoint lacks weights of its model: {len(missing)} of them, first {missing[0]}")
    return cast("Model", model)


def _prepare(
    model: Model, config: LocalEngineConfig, device: torch.device, dtype: torch.dtype, *, is_quantized: bool
) -> tuple[VisionArithmetic, bool]:
    """And whether the decoder layers are a stack. Raises ConfigError. A checkpoint that is quantized stays as it is."""
    if is_quantized:
        if config.vision_dtype != "auto":
            raise ConfigError(f"vision_dtype {config.vision_dtype} is not for a checkpoint that is quantized itself")
        return VisionArithmetic(dtype), False
    vision = vision_encoder.prepare(model, config.vision_dtype, device, dtype)
    num_stacked = decoder_stack.stack(cast("nn.Module", model))
    logger.info("%d decoder layers stacked", num_stacked)
    if device.type == "cpu" and dtype is torch.bfloat16 and can_pack():
        logger.info("%d linear layers packed", pack(cast("nn.Module", model)))
    return vision, num_stacked > 0


def choose_device(wanted: str) -> str:
    """``auto`` is CUDA, then MPS, then CPU. Raises ConfigError for a device that is not there."""
    available = ["cpu"]
    if torch.backends.mps.is_available():
        available.insert(0, "mps")
    if torch.cuda.is_available():
        available.insert(0, "cuda")
    if wanted == "auto":
        return available[0]
    if wanted not in available:
        raise ConfigError(f"device {wanted!r} was asked for; this machine has {', '.join(available)}")
    return wanted


def choose_dtype(wanted: str, device: str, checkpoint: torch.dtype) -> torch.dtype:
    """``auto`` is the checkpoint's own, except where the device is slow or wrong with it."""
    if wanted != "auto":
        return cast("torch.dtype", getattr(torch, wanted))
    if device == "cpu" and (checkpoint is torch.float16 or not _cpu_multiplies_bfloat16()):
        return torch.float32  # else every product is converted: measured ten times slower on an AVX2 machine
    if device == "cuda" and checkpoint is torch.bfloat16 and not torch.cuda.is_bf16_supported():
        return torch.float16
    return checkpoint


def _cpu_multiplies_bfloat16() -> bool:
    """Whether matrix products in bfloat16 have instructions or fast conversions of their own."""
    return torch.backends.cpu.get_cpu_capability() not in ("DEFAULT", "AVX2")


def _dtype_of(checkpoint: Any) -> torch.dtype:
    dtype: object = checkpoint.dtype
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


def _is_quantized(checkpoint: Any) -> bool:
    parts = (checkpoint, getattr(checkpoint, "text_config", None))
    return any(getattr(part, "quantization_config", None) is not None for part in parts)


@contextmanager
def _load_errors() -> Generator[None]:
    """The adapter of what loading can raise: a bad folder is the operator's to repair, not a crash."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        logger.exception("loading failed: %s", error)
        raise ConfigError("the model does not fit into the memory of the device") from error
    except Exception as error:
        logger.exception("loading failed: %s", error)
        raise ConfigError(
            f"the model folder cannot be loaded ({type(error).__name__}); the engine's log has the details"
        ) from error
