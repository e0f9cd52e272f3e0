"""How a model joins pictures and text, and how much of it a token uses: what sizes alone do not tell."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from opsin.models.files import ConfigFile, TextConfig


class Fusion(StrEnum):
    """Where pictures and text meet.

    EARLY: one transformer, trained on both from the start, reads their tokens together; every visual token costs
    prefill and KV cache like text from its first layer on. LATE: an encoder of its own and a connector make features
    for a language model; encoding is a stage of its own, which can be batched, cached and placed apart.
    """

    EARLY = "early"
    LATE = "late"


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOfExperts:
    """All weights are held in memory, a token computes with few of them. Parameters are in billions."""

    num_experts: int | None = None  # routed ones, per layer
    num_experts_per_token: int | None = None
    total_billions: float | None = None
    active_billions: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """None where nothing is known; ``moe`` is None for a dense model too."""

    fusion: Fusion | None = None
    moe: MixtureOfExperts | None = None


UNKNOWN = Traits()

_EARLY = frozenset({"chameleon", "gemma4_unified", "llama4"})
"""Model types without an encoder that was trained apart, by their authors' own description."""


def fusion_of(model_type: str, *, has_encoder: bool) -> Fusion | None:
    """By model type where that is known, else by whether the configuration has an encoder."""
    if model_type in _EARLY:
        return Fusion.EARLY
    return Fusion.LATE if has_encoder else None


def traits_of(config: ConfigFile) -> Traits:
    """What config.json tells; it does not state parameter counts."""
    return Traits(
        fusion=fusion_of(config.model_type, has_encoder=config.vision_config is not None), moe=_experts(config)
    )


def _experts(config: ConfigFile) -> MixtureOfExperts | None:
    text = config.text_config or TextConfig()
    num_experts = text.num_experts or text.num_local_experts or text.n_routed_experts
    if not num_experts:
        return None
    return MixtureOfExperts(num_experts=num_experts, num_experts_per_token=text.num_experts_per_tok)
