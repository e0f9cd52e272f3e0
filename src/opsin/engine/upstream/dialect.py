"""How engines behind the OpenAI chat wire differ: one row each, read in their code or seen in their answers.

vLLM 0.32, SGLang 0.5.23, TensorRT-LLM main of 2026, llama.cpp b11434. Knows no request and no HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from opsin.core.stages import Stage
from opsin.media.types import ImageFormat


class UpstreamKind(StrEnum):
    """Which engine an upstream is. AUTO: as it says itself, else what every engine understands."""

    AUTO = "auto"
    VLLM = "vllm"
    LLAMA_CPP = "llama.cpp"
    SGLANG = "sglang"
    TENSORRT_LLM = "tensorrt-llm"
    OPSIN = "opsin"
    OPENAI = "openai"


def _as_vllm() -> Mapping[str, str]:
    names = ("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos")
    return MappingProxyType({name: name for name in names})


def _none() -> Mapping[Stage, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What one engine reads beyond OpenAI's wire, and what it tells.

    Attributes:
        kind: the engine; AUTO is the row for one that nobody knows.
        owned_by: by which ``/v1/models`` gives the engine away.
        ready: the route that answers 503 while it cannot be asked; None: it lists no models before it can be, or nobody
            knows. llama-server and opsin list theirs while they load, vLLM when its engine is dead.
        formats: pictures that it reads; None: nobody knows, so they go as they came.
        ignores_orientation: it shows the model a picture as it is stored, whatever EXIF says.
        names_pictures: a picture part's ``uuid`` is its identity in all caches, and stands for known bytes.
        salt: the field whose value keeps the prefix caches of two tenants apart.
        cache_switch: the field that keeps one request from the prefix cache; needed where there is no ``salt``.
        options: sampling beyond OpenAI's, by opsin's names and its own; what is not here it does not understand.
        max_tokens: its name for the longest answer.
        report: the member of an event that holds ``stages``, in milliseconds of one request.
        stages: by which names. A prefill holds the vision encoder, as no engine tells that apart.
        waiting: its gauge of waiting requests on ``/metrics``; None where there is none.
        histograms: of ``stages`` on ``/metrics``, in seconds, over all its requests.
    """

    kind: UpstreamKind
    owned_by: str | None = None
    ready: str | None = None
    formats: frozenset[ImageFormat] | None = None
    ignores_orientation: bool = False
    names_pictures: bool = False
    salt: str | None = None
    cache_switch: str | None = None
    options: Mapping[str, str] = field(default_factory=_as_vllm)
    max_tokens: str = "max_tokens"
    report: str | None = None
    stages: Mapping[Stage, str] = field(default_factory=_none)
    waiting: str | None = None
    histograms: Mapping[Stage, str] = field(default_factory=_none)

    @property
    def source(self) -> str:
        """Who told a stage; another opsin has stages of the same names as this one."""
        return f"upstream {self.kind}" if self.kind is UpstreamKind.OPSIN else self.kind


_EVERY_FORMAT = frozenset(ImageFormat)
_BY_PILLOW = _EVERY_FORMAT - {ImageFormat.HEIC}
"""As engines in Python do; HEIC would need a plug-in."""

_BY_STB = frozenset({ImageFormat.JPEG, ImageFormat.PNG, ImageFormat.GIF, ImageFormat.BMP})

_ROWS = (
    Dialect(kind=UpstreamKind.AUTO),
    Dialect(
        kind=UpstreamKind.VLLM,
        owned_by="vllm",
        ready="/health",
        formats=_BY_PILLOW,
        names_pictures=True,
        salt="cache_salt",
        # "time to first token" begins when the request is scheduled. Only with --enable-per-request-metrics.
        report="metrics",
        stages={
            Stage.QUEUE: "queue_time_ms",
            Stage.PREFILL: "time_to_first_token_ms",
            Stage.DECODE: "generation_time_ms",
        },
        waiting="vllm:num_requests_waiting",
        histograms={
            Stage.QUEUE: "vllm:request_queue_time_seconds",
            Stage.PREFILL: "vllm:request_prefill_time_seconds",
            Stage.DECODE: "vllm:request_decode_time_seconds",
        },
    ),
    Dialect(
        kind=UpstreamKind.LLAMA_CPP,
        owned_by="llamacpp",
        ready="/health",
        formats=_BY_STB,
        ignores_orientation=True,
        cache_switch="cache_prompt",
        options={
            "top_k": "top_k",
            "min_p": "min_p",
            "repetition_penalty": "repeat_penalty",
            "ignore_eos": "ignore_eos",
        },
        report="timings",
        stages={Stage.PREFILL: "prompt_ms", Stage.DECODE: "predicted_ms"},
        waiting="llamacpp:requests_deferred",
    ),
    Dialect(
        kind=UpstreamKind.SGLANG,
        owned_by="sglang",
        formats=_BY_PILLOW,
        salt="cache_salt",
        waiting="sglang:num_queue_reqs",
        histograms={Stage.QUEUE: "sglang:queue_time_seconds"},
    ),
    Dialect(
        kind=UpstreamKind.TENSORRT_LLM,
        owned_by="tensorrt_llm",
        formats=_BY_PILLOW,
        salt="cache_salt",
    ),
    Dialect(
        kind=UpstreamKind.OPSIN,
        owned_by="opsin",
        ready="/ready",
        formats=_EVERY_FORMAT - {ImageFormat.HEIC, ImageFormat.AVIF, ImageFormat.TIFF},  # what it takes by default
        waiting="opsin_num_requests_waiting",
    ),
    Dialect(
        kind=UpstreamKind.OPENAI,
        formats=frozenset({ImageFormat.JPEG, ImageFormat.PNG, ImageFormat.GIF, ImageFormat.WEBP}),
        options=MappingProxyType({}),
        max_tokens="max_completion_tokens",
    ),
)

DIALECTS: Mapping[UpstreamKind, Dialect] = {row.kind: row for row in _ROWS}


def dialect_of(stated: UpstreamKind, owned_by: str | None) -> Dialect:
    """The stated one; of AUTO that which ``/v1/models`` gives away."""
    if stated is not UpstreamKind.AUTO:
        return DIALECTS[stated]
    found = (row for row in _ROWS if row.owned_by and row.owned_by == owned_by)
    return next(found, DIALECTS[UpstreamKind.AUTO])
