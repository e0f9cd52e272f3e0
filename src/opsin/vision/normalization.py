"""How a checkpoint's image processor turns levels from 0 to 255 into the encoder's input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opsin.core.errors import ConfigError
from opsin.models.card import ModelCard

Channels = tuple[float, float, float]

_CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_HALF = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
_DEFAULTS: Mapping[str, tuple[Channels, Channels]] = {"gemma3": _HALF, "idefics3": _HALF, "smolvlm": _HALF}
"""Of Transformers' classes, where the files state none; of all other families CLIP's."""

_RESCALE_FACTOR = 1 / 255


@dataclass(frozen=True, slots=True)
class Normalization:
    """Per RGB channel, on levels divided by 255: (x - mean) / std."""

    mean: Channels
    std: Channels


@dataclass(frozen=True, slots=True)
class _Steps:
    do_rescale: bool | None = None
    do_normalize: bool | None = None
    rescale_factor: float | None = None


def normalization_of(card: ModelCard) -> Normalization:
    """As the checkpoint states it, or its processor's class. Raises ConfigError for steps that are not these two."""
    document = card.vision.image_processor
    steps = document.read(_Steps)
    if steps.do_rescale is False or abs((steps.rescale_factor or _RESCALE_FACTOR) - _RESCALE_FACTOR) > 1e-9:
        raise ConfigError(f"{document.name}: do_rescale or rescale_factor; the local engine divides levels by 255")
    mean, std = _DEFAULTS.get(card.model_type, _CLIP)
    if steps.do_normalize is False:
        return Normalization((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    return Normalization(
        _per_channel(card.normalization.mean, mean),
        _per_channel(card.normalization.std, std),
    )


def _per_channel(values: tuple[float, ...] | None, default: Channels) -> Channels:
    if values is None:
        return default
    if len(values) != 3:
        raise ConfigError(f"image_mean and image_std need 3 values, one per channel; got {len(values)}")
    return values[0], values[1], values[2]
