"""What one run measures, judged as a whole. Knows no file of results and no server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError, model_validator

from opsin.core.problems import Problem, raise_all

DEFAULT_NUM_PROMPTS = 100


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Arrival(StrEnum):
    """Gaps between the arrivals of an open loop."""

    POISSON = "poisson"
    CONSTANT = "constant"


class Resolution(_Frozen):
    """One size of picture and its share of all pictures, before shares are made to add up to 1."""

    width: int = Field(ge=8, le=16384)
    height: int = Field(ge=8, le=16384)
    weight: float = Field(gt=0)

    def __str__(self) -> str:
        return f"{self.width}x{self.height}:{self.weight:g}"


class Count(_Frozen):
    """Pictures per request, any number from ``low`` to ``high`` equally likely."""

    low: int = Field(ge=0, le=64)
    high: int = Field(ge=0, le=64)

    @model_validator(mode="after")
    def _ordered(self) -> Count:
        if self.low > self.high:
            raise ValueError("the first number may not be larger than the second")
        return self

    def __str__(self) -> str:
        return f"{self.low}" if self.low == self.high else f"{self.low}-{self.high}"


class PictureFormat(_Frozen):
    """How drawn pictures are encoded; ``quality`` is Pillow's, and None for PNG."""

    kind: Literal["jpeg", "webp", "png"]
    quality: int | None = Field(default=None, ge=1, le=100)

    @property
    def mime(self) -> str:
        """The media type of a data URL."""
        return f"image/{self.kind}"

    def __str__(self) -> str:
        return self.kind if self.quality is None else f"{self.kind}:{self.quality}"


class CacheKind(StrEnum):
    """What the server may already know of a picture when a request brings it."""

    COLD = "cold"  # nothing: no two pictures of a run are alike
    WARM = "warm"  # all of it: every picture was sent before the clock started
    MIXED = "mixed"  # some: each level draws from pictures of its own, some far more often than others


class CacheState(_Frozen):
    """``unique``: pictures to draw from, per run when warm, per level when mixed; ``exponent``: Zipf's s."""

    kind: CacheKind = CacheKind.COLD
    unique: int | None = Field(default=None, ge=1)
    exponent: float = Field(default=0.0, ge=0, le=10)

    def __str__(self) -> str:
        match self.kind:
            case CacheKind.COLD:
                return "cold"
            case CacheKind.WARM:
                return f"warm:{self.unique}"
            case CacheKind.MIXED:
                return f"mixed:{self.unique}:{self.exponent:g}"


class Slo(_Frozen):
    """A limit that a good request keeps; names are those of vLLM's ``--goodput``."""

    metric: Literal["ttft", "tpot", "e2el"]
    limit_ms: float = Field(gt=0)

    def __str__(self) -> str:
        return f"{self.metric}:{self.limit_ms:g}"


def _parse_resolutions(value: object) -> object:
    return [_parse_resolution(word) for word in value.split(",")] if isinstance(value, str) else value


def _parse_resolution(word: str) -> Mapping[str, object]:
    found = re.fullmatch(r"\s*(\d+)x(\d+)(?::([\d.]+))?\s*", word)
    if found is None:
        raise ValueError(
            f"expected WIDTHxHEIGHT:SHARE with commas between, e.g. 512x512:0.5,1920x1080:0.5, got {word!r}"
        )
    return {"width": found[1], "height": found[2], "weight": found[3] or 1}


def _parse_count(value: object) -> object:
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", value)
    if found is None:
        raise ValueError(f"expected a number or a range such as 1-4, got {value!r}")
    return {"low": found[1], "high": found[2] or found[1]}


def _parse_format(value: object) -> object:
    if not isinstance(value, str):
        return value
    kind, _, quality = value.partition(":")
    if kind == "png" and quality:
        raise ValueError("PNG has no quality")
    return {"kind": kind, "quality": None if kind == "png" else quality or 85}


def _parse_cache(value: object) -> object:
    if not isinstance(value, str):
        return value
    kind, *numbers = value.split(":")
    if kind not in tuple(CacheKind) or len(numbers) > {"cold": 0, "warm": 1, "mixed": 2}[kind]:
        raise ValueError(f"expected cold, warm, warm:K, or mixed:K:S, got {value!r}")
    if kind == CacheKind.COLD:
        return {"kind": kind}
    unique, exponent = [*numbers, *("8", "1.0")[len(numbers) :]]
    return {"kind": kind, "unique": unique, "exponent": exponent if kind == CacheKind.MIXED else 0}


def _parse_slo(value: object) -> object:
    if not isinstance(value, str):
        return value
    metric, _, limit = value.partition(":")
    return {"metric": metric, "limit_ms": limit}


class BenchConfig(_Frozen):
    """All of a run. Texts that the command line takes are taken here too. Times in seconds, rates per second."""

    url: str
    model: str | None = None
    api_key: SecretStr | None = None
    # load: one level per number, of one of the two kinds
    max_concurrency: tuple[Annotated[int, Field(ge=1, le=4096)], ...] = ()
    request_rate: tuple[Annotated[float, Field(gt=0, le=100_000)], ...] = ()
    arrival: Arrival = Arrival.POISSON
    num_prompts: int | None = Field(default=None, ge=1)
    duration_s: float | None = Field(default=None, gt=0)
    num_warmups: int | None = Field(default=None, ge=0)
    timeout_s: float = Field(default=600, gt=0)
    start_tolerance_s: float = Field(default=1, gt=0)  # a request that the client begins later than this is given up
    # what is asked
    images: Annotated[Count, BeforeValidator(_parse_count)] = Count(low=1, high=1)
    resolution: Annotated[tuple[Resolution, ...], BeforeValidator(_parse_resolutions), Field(min_length=1)] = (
        Resolution(width=512, height=512, weight=1),
    )
    format: Annotated[PictureFormat, BeforeValidator(_parse_format)] = PictureFormat(kind="jpeg", quality=85)
    picture_dir: Path | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None
    cache: Annotated[CacheState, BeforeValidator(_parse_cache)] = CacheState()
    input_words: int = Field(default=16, ge=1, le=100_000)
    output_len: int = Field(default=128, ge=1)
    ignore_eos: bool = False
    seed: int = 0
    # judgement and means
    goodput: tuple[Annotated[Slo, BeforeValidator(_parse_slo)], ...] = ()
    probe_rate: float | None = Field(default=None, gt=0, le=100)
    workers: int = Field(default=1, ge=1, le=64)
    server_pid: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _consistent(self) -> BenchConfig:
        if wrong := [*_problems_of_url(self.url), *self._problems_of_load()]:
            raise ValueError("; ".join(wrong))
        return self

    def _problems_of_load(self) -> list[str]:
        wrong = list[str]()
        if self.max_concurrency and self.request_rate:
            wrong.append(
                "--max-concurrency with --request-rate: a cap on arrivals hides the wait in front of it; "
                "measure one or the other"
            )
        if self.duration_s is not None and not self.request_rate and self.num_prompts is None:
            wrong.append(
                "--duration without --request-rate needs --num-prompts too: all pictures are made before the start"
            )
        if self.images.high == 0 and self.cache.kind is not CacheKind.COLD:
            wrong.append(f"--cache {self.cache} needs pictures, and --images is 0")
        return wrong

    @property
    def is_open_loop(self) -> bool:
        """Whether requests arrive by the clock, not when others end."""
        return bool(self.request_rate)

    @property
    def levels(self) -> tuple[float, ...]:
        """The loads in order: rates of an open loop, else concurrencies."""
        return self.request_rate or self.max_concurrency or (1,)

    def without_secrets(self) -> dict[str, Any]:
        """Plain data for the head of the results; a key is left out."""
        return self.model_dump(mode="json", exclude={"api_key"})


def _problems_of_url(url: str) -> list[str]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return [f"expected a URL such as http://127.0.0.1:8000, got {url!r}"]
    if parts.username is not None:
        return ["the URL may not hold a user or password: give a key with --api-key"]
    return []


def checked(values: Mapping[str, object]) -> BenchConfig:
    """The configuration. Raises ConfigError with everything that is wrong."""
    try:
        return BenchConfig.model_validate(values)
    except ValidationError as error:
        raise_all([Problem(_sentence(one["loc"], one["msg"])) for one in error.errors()])
        raise AssertionError("a ValidationError without errors") from None


def _sentence(location: tuple[int | str, ...], message: str) -> str:
    text = message.removeprefix("Value error, ")
    if not location:
        return text
    name = str(location[0]).removesuffix("_s").replace("_", "-")
    return f"--{name}: {text}"
