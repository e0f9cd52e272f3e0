"""Settings of the local engine. Knows no torch: the parent process reads them too."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from opsin.cache.tombstones import TOMBSTONE_TTL_S
from opsin.core.errors import ConfigError
from opsin.core.stages import Stage
from opsin.engine.local.traits import TRAITS

Device = Literal["auto", "cpu", "cuda", "mps"]
VLLM_DTYPES = {"half": "float16", "float": "float32"}
Dtype = Annotated[
    Literal["auto", "bfloat16", "float16", "float32"],
    BeforeValidator(lambda name: VLLM_DTYPES.get(name, name) if isinstance(name, str) else name),
]
VisionDtype = Literal["auto", "bfloat16", "float16", "float32", "int8"]
ENGINE_STAGES = (Stage.VISION_ENCODE, Stage.PREFILL, Stage.DECODE)
"""What the runner does."""

Seconds = Annotated[float, Field(ge=0)]
T = TypeVar("T", float, int)


class LocalOptions(BaseModel):
    """What an operator may set about the engine of this machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_num_seqs: int = Field(default=8, gt=0, description="requests in one batch")
    max_num_batched_tokens: int | None = Field(
        default=None,
        gt=0,
        description="positions of one step, prompts are cut to it; default: 2048 on a CPU, else 4096. While others "
        "decode, at most 224 on a CPU",
    )
    max_num_encoder_tokens: int | None = Field(
        default=None,
        gt=0,
        description="visual tokens of one run of the vision encoder, which takes one tile (of families without "
        "independent tiles: one picture) at least, and on a CPU two at most; default: 512 on a CPU, else 4096",
    )
    kv_cache_memory_bytes: int | None = Field(
        default=None, gt=0, description="keys and values of running requests; default: half of the device's free memory"
    )
    device: Device = Field(default="auto", description="auto takes CUDA, then MPS, then the CPU")
    dtype: Dtype = Field(default="auto", description="auto is the checkpoint's own, where the device is good at it")
    vision_dtype: VisionDtype = Field(
        default="auto",
        description="of the vision encoder; auto is dtype, or float32 on a CPU that is faster with it; int8 needs VNNI "
        "instructions of a CPU",
    )
    attn_implementation: Literal["sdpa", "eager"] = Field(
        default="sdpa", description="of the vision encoder, by Transformers"
    )
    gpu_memory_utilization: float | None = Field(
        default=None, gt=0, le=1, description="share of a CUDA device that the engine may take; no effect elsewhere"
    )
    feature_cache_bytes: int = Field(default=256 * 1024**2, ge=0, description="device memory for vision features")
    prefix_cache_bytes: int = Field(
        default=256 * 1024**2, ge=0, description="device memory for keys and values of finished requests"
    )
    cache_ttl_s: float = Field(default=3600.0, gt=0, description="after which cached features, keys and values go")
    num_threads: int | None = Field(
        default=None, gt=0, description="of torch on the CPU; default: its processors, or fewer by a container's limit"
    )
    trust_remote_code: bool = Field(default=False, description="run the code that a checkpoint brings along")
    quantization: str | None = Field(
        default=None, description="has to be the checkpoint's own, which is honoured without this"
    )
    start_timeout_s: float = Field(default=600.0, gt=0, description="for the model to load")
    warm_up_s: float = Field(
        default=20.0,
        ge=0,
        description="after loading, steps of every kind are run for so long at most before requests are taken; 0: none",
    )


class PictureShape(BaseModel):
    """A picture as the engine gets it, see ``Tiles``, and the positions that it fills."""

    model_config = ConfigDict(frozen=True)

    num_tiles: int
    width: int
    height: int
    image_tokens: int
    original: tuple[int, int] = (0, 0)


class LocalEngineConfig(LocalOptions):
    """What the worker process needs to load and run one model.

    ``image_mean`` and ``image_std`` are per RGB channel, for pixels scaled to 0..1. ``warm_up_pictures`` are some of
    the model's shapes. Fault injection for tests:
    ``delays`` adds seconds to a stage of every request (vision_encode: of every picture), ``step_delay_s`` to every
    decode step, ``out_of_memory`` makes so many of a stage's first calls fail.
    """

    model_path: Path
    model_type: str
    image_token_id: int
    eos_token_ids: tuple[int, ...]
    image_mean: tuple[float, float, float]
    image_std: tuple[float, float, float]
    max_model_len: int = Field(gt=1)
    tombstone_ttl_s: float = Field(default=TOMBSTONE_TTL_S, gt=0)
    warm_up_pictures: tuple[PictureShape, ...] = ()
    delays: dict[Stage, Seconds] = Field(default_factory=dict[Stage, float])
    step_delay_s: Seconds = 0.0
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
    if config.model_type not in TRAITS:
        raise ConfigError(
            f"model type {config.model_type!r} is not served by the local engine; supported: {', '.join(TRAITS)}"
        )
