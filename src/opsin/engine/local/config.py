"""Settings of the local engine. Knows no torch: the parent process reads them too."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from opsin.core.errors import ConfigError
from opsin.core.stages import Stage

SUPPORTED_MODEL_TYPES = ("idefics3", "smolvlm")
"""Families whose encoder seam is tested: ``get_image_features`` in, ``mm_encoder_outputs`` out."""

Device = Literal["auto", "cpu", "cuda", "mps"]
Dtype = Literal["auto", "bfloat16", "float16", "float32"]
ENGINE_STAGES = (Stage.VISION_ENCODE, Stage.PREFILL, Stage.DECODE)
"""What the runner does."""

Seconds = Annotated[float, Field(ge=0)]
T = TypeVar("T", float, int)


class LocalOptions(BaseModel):
    """What an operator may set about the engine of this machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_num_seqs: int = Field(default=1, gt=0)
    device: Device = "auto"
    dtype: Dtype = "auto"
    attn_implementation: Literal["sdpa", "eager"] = "sdpa"
    feature_cache_bytes: int = Field(default=256 * 1024**2, ge=0)
    num_threads: int | None = Field(default=None, gt=0)
    trust_remote_code: bool = False
    start_timeout_s: float = Field(default=600.0, gt=0)


class LocalEngineConfig(LocalOptions):
    """What the worker process needs to load and run one model.

    ``image_mean`` and ``image_std`` are per RGB channel, for pixels scaled to 0..1. Fault injection for tests:
    ``delays`` adds seconds to every call of a stage, ``out_of_memory`` makes so many of its first calls fail.
    """

    model_path: Path
    model_type: str
    image_token_id: int
    eos_token_ids: tuple[int, ...]
    image_mean: tuple[float, float, float]
    image_std: tuple[float, float, float]
    max_model_len: int = Field(gt=1)
    delays: dict[Stage, Seconds] = Field(default_factory=dict[Stage, float])
    out_of_memory: dict[Stage, int] = Field(default_factory=dict[Stage, int])

    @field_validator("delays", "out_of_memory")
    @classmethod
    def _only_engine_stages(cls, faults: dict[Stage, T]) -> dict[Stage, T]:
        for stage in faults:
            if stage not in ENGINE_STAGES:
                raise ValueError(f"{stage} is not a stage of the engine; expected one of {', '.join(ENGINE_STAGES)}")
        return faults


def check_supported(config: LocalEngineConfig) -> None:
    """Raises ConfigError for a model type outside the tested list."""
    if config.model_type not in SUPPORTED_MODEL_TYPES:
        raise ConfigError(
            f"model type {config.model_type!r} is not served by the local engine; "
            f"supported: {', '.join(SUPPORTED_MODEL_TYPES)}"
        )
