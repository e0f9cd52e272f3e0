"""In which arithmetic the vision encoder runs. Knows no family: it is what a model has beside its text model."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from opsin.core.errors import ConfigError
from opsin.engine.local.config import VisionDtype
from opsin.engine.local.encoder_stack import stack_encoder
from opsin.engine.local.packed_linear import can_pack, pack
from opsin.engine.local.quantized_linear import can_quantize, quantize

logger = logging.getLogger(__name__)

_TEXT_MODELS = frozenset({"language_model", "text_model"})
_CONNECTORS = frozenset({"connector", "multi_modal_projector"})
_CLEARLY = 1.2
"""How many times faster float32 has to be before the encoder takes twice the memory for it."""
_TRIALS = 8


@dataclass(frozen=True, slots=True)
class VisionArithmetic:
    """``dtype``: of pixels, and of all that is not int8. Int8 inputs have one scale per call, so units run apart."""

    dtype: torch.dtype
    is_int8: bool = False

    @property
    def name(self) -> str:
        """For people: ``int8`` or the dtype."""
        return "int8" if self.is_int8 else str(self.dtype).removeprefix("torch.")


def has_int8(device: str) -> bool:
    """Whether ``device``, such as ``cpu``, multiplies int8 fast."""
    return device == "cpu" and can_quantize()


def require(wanted: VisionDtype, device: str) -> None:
    """Raises ConfigError where ``device``, such as ``cpu``, has no fast ``wanted``."""
    if wanted != "int8" or has_int8(device):
        return
    found = "this CPU has none" if device == "cpu" else f"the model runs on {device}"
    raise ConfigError(f"vision_dtype int8 needs a CPU with VNNI instructions, and {found}")


def prepare(model: Any, wanted: VisionDtype, device: torch.device, dtype: torch.dtype) -> VisionArithmetic:
    """Turns the encoder and its connector to ``wanted``; the text model, which runs in ``dtype``, stays as it is.

    Raises ConfigError where this machine has no fast int8.
    """
    require(wanted, device.type)
    chosen = VisionArithmetic(_float_of(wanted, device, dtype), is_int8=wanted == "int8")
    for name, module in vision_parts(model):
        module.to(chosen.dtype)
        if device.type == "cpu":
            _let_channels_be_last(module)
            if stacked := stack_encoder(module):
                logger.info("%d layers of %s stacked", stacked, name)
        if chosen.is_int8 and name not in _CONNECTORS:
            logger.info("%d linear layers of %s in int8", quantize(module), name)
        elif device.type == "cpu" and chosen.dtype is torch.bfloat16 and can_pack():
            logger.info("%d linear layers of %s packed", pack(module, is_tuned=True), name)
    logger.info("the vision encoder runs in %s", chosen.name)
    return chosen


def _let_channels_be_last(module: nn.Module) -> None:
    """Of patches, so that all that is added to them lies as layer norms read it.

    Else each layer norm copies it first, which was 60 of 1,200 ms per tile of 512 x 512 in SigLIP's shape.
    """
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            cast("Any", part).to(memory_format=torch.channels_last)  # the stub has no such argument alone


def _float_of(wanted: VisionDtype, device: torch.device, dtype: torch.dtype) -> torch.dtype:
    if wanted not in ("auto", "int8"):
        return cast("torch.dtype", getattr(torch, wanted))
    return torch.float32 if device.type == "cpu" and dtype is torch.bfloat16 and float32_is_faster() else dtype


def float32_is_faster() -> bool:
    """Than bfloat16, where there are many rows, on this CPU.

    Intel's without AMX have the bfloat16 instruction at a fraction of the rate of float32's: measured on a Xeon, 150
    and 245 GFLOP/s; on a Zen 4 it is 440 and 165 to 205. So it is tried, for some 100 ms.
    """
    times = {torch.bfloat16: float("inf"), torch.float32: float("inf")}
    for _ in range(_TRIALS):  # in turn, and the least of each: what is left of neighbours only ever adds
        for dtype in times:
            times[dtype] = min(times[dtype], _product_s(dtype))
    logger.debug("a product takes %s", times)
    return times[torch.bfloat16] > _CLEARLY * times[torch.float32]


def _product_s(dtype: torch.dtype) -> float:
    rows, weight = torch.ones(256, 768, dtype=dtype), torch.ones(1536, 768, dtype=dtype)
    started = time.thread_time()  # the clock would show neighbours, too
    functional.linear(rows, weight)
    return time.thread_time() - started


def vision_layers(model: Any) -> Iterator[nn.Module]:
    """The blocks that the encoder runs one after the other, which are what Transformers keeps in lists."""
    for _, part in vision_parts(model):
        for module in part.modules():
            if isinstance(module, nn.ModuleList):
                yield from module


def vision_parts(model: Any) -> Iterator[tuple[str, nn.Module]]:
    """Encoder, connector, and whatever else a model has beside its text model, by name."""
    children = cast("Iterator[tuple[str, nn.Module]]", model.model.named_children())
    return ((name, child) for name, child in children if name not in _TEXT_MODELS)
