"""One settings object: ``opsin.toml``, then ``OPSIN_*``, then flags, in rising precedence.

Composes the configuration of each package; nothing below this file reads the environment.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, field_validator, model_validator

from opsin.cache.config import CacheConfig
from opsin.core.problems import Problem, raise_all
from opsin.core.stages import Stage
from opsin.engine.apis import ApiConfig
from opsin.engine.fake import FakeConfig
from opsin.engine.local.config import LocalOptions
from opsin.engine.managed.config import ManagedOptions
from opsin.engine.managed.registry import PROGRAMS
from opsin.engine.replicas.config import RoutingConfig
from opsin.engine.upstream.config import UpstreamConfig, is_grpc
from opsin.gateway.config import GatewayConfig, OverBudget
from opsin.media.config import LimitPerPrompt, MediaConfig
from opsin.models.config import HubConfig
from opsin.sources import Given, Layer, closest, flatten, from_environment, from_file, load, variable_of
from opsin.telemetry.logs import LogFormat
from opsin.tenants.keys import NO_LIMITS, Limits
from opsin.vision.config import ProcessorKwargs
from opsin.vllm_flags import Stated

DEMO_MODEL = "demo"
"""The model shipped in the package."""

FILE = Path("opsin.toml")
"""Read from the working directory when no other file is named."""


_POWERS = {"k": 1, "m": 2, "g": 3}


class EngineKind(StrEnum):
    """Which engine answers."""

    LOCAL = "local"
    UPSTREAM = "upstream"
    FAKE = "fake"
    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMA_CPP = "llama.cpp"
    RAMALAMA = "ramalama"
    TRITON = "triton"
    API = "api"

    @property
    def is_managed(self) -> bool:
        """Whether opsin starts somebody else's program."""
        return self in PROGRAMS


def _pairs(value: object) -> object:
    """``prefill=0.5,queue=1``, as a flag has it."""
    if not isinstance(value, str):
        return value
    pairs = [pair.split("=") for pair in value.split(",")]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError("should be STAGE=NUMBER, several with commas")
    return dict(pairs)


def _tokens(value: object) -> object:
    """As vLLM reads it: ``25.6k`` is 25600, ``8K`` is 8192, and ``auto`` and -1 leave it to the model."""
    if value in ("auto", "-1", -1):
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg])|(\d+)([KMG])", value) if isinstance(value, str) else None
    if found is None:
        return value
    decimal, unit, binary, binary_unit = found.groups()
    return (
        int(binary) * 1024 ** _POWERS[binary_unit.lower()] if binary else round(float(decimal) * 1000 ** _POWERS[unit])
    )


def _lower(value: object) -> object:
    """vLLM writes levels in capitals."""
    return value.lower() if isinstance(value, str) else value


class ModelTable(BaseModel):
    """One of several models: what its table states stands in the place of the settings of the same name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, description="under which clients ask for it")
    aliases: tuple[str, ...] = Field(default=(), description="further names")
    engine: EngineKind = Field(default=EngineKind.LOCAL, description="which engine answers; an upstream chooses it")
    model: str | None = Field(default=None, description="folder or hub id; with an upstream: to count its pictures")
    revision: str | None = Field(default=None, description="commit of a hub model")
    max_model_len: Annotated[int | None, BeforeValidator(_tokens)] = Field(
        default=None, gt=1, description="tokens of prompt and output"
    )
    mm_processor_kwargs: ProcessorKwargs = ProcessorKwargs()
    chat_template: str | None = Field(default=None, description="a jinja file, or the template itself")
    limit_mm_per_prompt: LimitPerPrompt = LimitPerPrompt()
    max_image_tiles: int | None = Field(default=None, ge=1, description="tiles of one picture")
    max_image_tokens: int | None = Field(default=None, ge=1, description="visual tokens of one picture")
    max_request_image_tokens: int | None = Field(default=None, ge=1, description="visual tokens of all pictures")
    over_budget: OverBudget = Field(default=OverBudget.AUTO, description="what becomes of pictures that do not fit")
    upstream: UpstreamConfig | None = None
    routing: RoutingConfig = RoutingConfig()
    api: ApiConfig = ApiConfig()
    local: LocalOptions = LocalOptions()
    managed: ManagedOptions = ManagedOptions()
    fake: FakeConfig = FakeConfig()

    @model_validator(mode="before")
    @classmethod
    def _engine_chosen(cls, stated: object) -> object:
        """Naming an upstream chooses it."""
        if isinstance(stated, dict) and "upstream" in stated and "engine" not in stated:
            fields = cast("dict[str, object]", stated)
            upstream = fields["upstream"]
            url = cast("dict[str, object]", upstream).get("url") if isinstance(upstream, dict) else None
            return {**fields, "engine": _kind_at(url)}
        return cast("object", stated)

    @model_validator(mode="after")
    def _has_model(self) -> ModelTable:
        if self.engine is EngineKind.LOCAL and self.model is None:
            raise ValueError(f"{self.name}: engine local needs a model, another one an engine or an upstream")
        if self.engine is EngineKind.UPSTREAM and self.upstream is None:
            raise ValueError(f"{self.name}: engine upstream needs an upstream with its url")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """All names, the first one first."""
        return (self.name, *self.aliases)


_NAMES_ONE = ("model", "engine", "upstream.url")
MODEL_LIMITS = {
    "gateway": ("max_image_tiles", "max_image_tokens", "max_request_image_tokens", "over_budget"),
    "media": ("limit_mm_per_prompt",),
}
"""Settings of other sections that a model may have of its own."""


class Settings(BaseModel):
    """Everything an operator can set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(
        default=DEMO_MODEL,
        description="folder, hub id, or 'demo'; with an upstream: what it serves, to count its pictures",
    )
    revision: str | None = Field(default=None, description="commit of a hub model; pin it in production")
    served_model_name: tuple[str, ...] = Field(
        default=(), description="names under which clients may ask for the model; default: the model's own"
    )
    max_model_len: Annotated[int | None, BeforeValidator(_tokens)] = Field(
        default=None,
        gt=1,
        description="tokens of prompt and output, 8k is 8000 and 8K 8192; default: the upstream's or the model's",
    )
    mm_processor_kwargs: ProcessorKwargs = Field(
        default=ProcessorKwargs(), description='what pictures may cost at most, as vLLM has it: {"max_pixels": 1000000}'
    )
    chat_template: str | None = Field(
        default=None, description="a jinja file, or the template itself, in place of the model's own"
    )
    engine: EngineKind = Field(
        default=EngineKind.LOCAL,
        description="which engine answers; naming an upstream chooses it, and opsin starts those of others itself",
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)] = Field(
        default="info", description="what goes to standard error"
    )
    log_format: LogFormat = Field(default=LogFormat.TEXT, description="key=value lines, or one JSON object per line")
    redis_url: SecretStr | None = Field(
        default=None,
        description="of the Redis server where gateways share limits, what is kept of pictures, and keys where they "
        "are asked to: redis://…, rediss://…, unix://…; needs pip install opsin[redis]",
    )
    limits: Limits = Field(
        default=NO_LIMITS, description='of every tenant, {"requests_per_minute": 60}; those of its key come first'
    )
    gateway: GatewayConfig = GatewayConfig()
    media: MediaConfig = MediaConfig()
    cache: CacheConfig = CacheConfig()
    hub: HubConfig = HubConfig()
    local: LocalOptions = LocalOptions()
    upstream: UpstreamConfig | None = None
    routing: RoutingConfig = RoutingConfig()
    api: ApiConfig = ApiConfig()
    managed: ManagedOptions = ManagedOptions()
    fake: FakeConfig = FakeConfig()
    models: tuple[ModelTable, ...] = Field(
        default=(), description="several models, each a table [[models]], in the place of one: see docs/replicas.md"
    )
    inject_delay_s: Annotated[dict[Stage, float], BeforeValidator(_pairs)] = Field(
        default_factory=dict[Stage, float],
        description="fault injection: seconds added to a stage of every request; vision_encode: for every picture",
    )
    inject_step_delay_s: float = Field(
        default=0.0,
        ge=0,
        description="fault injection: seconds added to every decode step, so that an answer takes long",
    )
    inject_out_of_memory: Annotated[dict[Stage, int], BeforeValidator(_pairs)] = Field(
        default_factory=dict[Stage, int], description="fault injection: so many first calls of an engine stage fail"
    )

    @field_validator("redis_url")
    @classmethod
    def _of_redis(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None and not url.get_secret_value().startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("should be redis://HOST:PORT/DB, rediss:// or unix://")
        return url

    @field_validator("models")
    @classmethod
    def _each_name_once(cls, models: tuple[ModelTable, ...]) -> tuple[ModelTable, ...]:
        names = Counter(name for table in models for name in table.names)
        if twice := [name for name, count in names.items() if count > 1]:
            raise ValueError(f"should have every name once, and has more of {', '.join(twice)}")
        return models

    @property
    def each_model(self) -> tuple[Settings, ...]:
        """The settings of each model as if it were served alone."""
        return tuple(map(self._alone, self.models)) or (self,)

    def _alone(self, table: ModelTable) -> Settings:
        said = {name: getattr(table, name) for name in table.model_fields_set - {"name", "aliases"}}
        stated = {name: value for name, value in said.items() if value is not None}
        for section, limits in MODEL_LIMITS.items():
            own = {name: stated.pop(name) for name in limits if name in stated}
            stated[section] = getattr(self, section).model_copy(update=own)
        names = {"served_model_name": table.names, "models": ()}
        return self.model_copy(update={**stated, "engine": table.engine, **names})

    @property
    def stated_model(self) -> str | None:
        """The model if somebody named it."""
        return self.model if "model" in self.model_fields_set else None

    @property
    def model_location(self) -> str:
        """Folder or hub id; ``demo`` is a folder of the package."""
        return str(Path(__file__).parent / "demo" / "model") if self.model == DEMO_MODEL else self.model


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings, and who stated what. Where a value is wrong its default stands in ``settings``.

    ``vllm`` are flags of vLLM's that are no settings.
    """

    settings: Settings
    given: Layer
    problems: tuple[Problem, ...]
    notices: tuple[str, ...]
    vllm: tuple[Stated, ...] = ()

    def checked(self) -> Settings:
        """The settings. Raises ConfigError that names every wrong value."""
        raise_all(self.problems)
        return self.settings


def configuration(flags: Layer, file: Path | None = None, vllm: tuple[Stated, ...] = ()) -> Configuration:
    """Reads all sources. ``file`` has to exist if it is named."""
    problems: list[Problem] = []
    stated = _file(file, problems)
    environment, notices = _environment()
    layers, ignored = _one_or_several((stated, environment, flags))
    loaded = load(Settings, {path: given for layer in layers for path, given in _engine_chosen(layer).items()})
    settings = loaded.settings
    if settings.engine.is_managed:
        settings, vllm = _passed_on(settings, vllm), ()
    return Configuration(settings, loaded.given, (*problems, *loaded.problems), (*notices, *ignored), vllm)


def _passed_on(settings: Settings, stated: tuple[Stated, ...]) -> Settings:
    """An engine that opsin starts gets what is no setting, behind the words that the operator keeps for it."""
    words = (*settings.managed.arguments, *(word for one in stated for word in one.words))
    managed = settings.managed.model_copy(update={"arguments": words})
    return settings.model_copy(update={"managed": managed})


def load_settings(values: dict[str, Any], file: Path | None = None) -> Settings:
    """Settings from all sources; ``values`` is nested like Settings and stands in the place of flags.

    ``file`` has to exist if it is named.

    Raises:
        ConfigError: listing every wrong value at once.
    """
    stated = {path: Given(value, "code", path) for path, value in flatten(Settings, values)}
    return configuration(stated, file).checked()


def _file(named: Path | None, problems: list[Problem]) -> Layer:
    path = named or FILE
    if named is None and not path.is_file():
        return {}
    try:
        return from_file(Settings, path)
    except OSError as error:
        problems.append(Problem(f"{path}: cannot be read: {error.strerror}"))
    except ValueError as error:
        problems.append(Problem(f"{path}: not TOML: {error}"))
    return {}


def _environment() -> tuple[Layer, tuple[str, ...]]:
    """What the environment states. Variables of no setting are only noted: Kubernetes makes some for a Service."""
    layer = from_environment(Settings, os.environ)
    strange = [path for path in layer if path.partition(".")[0] not in Settings.model_fields]
    return {path: given for path, given in layer.items() if path not in strange}, tuple(map(_ignored, strange))


def _ignored(path: str) -> str:
    meant = closest(Settings, path)
    hint = f"; did you mean {variable_of(meant)}?" if meant else ""
    return f"{variable_of(path)} is no setting and is ignored{hint}"


def _one_or_several(layers: tuple[Layer, ...]) -> tuple[list[Layer], list[str]]:
    """A source that names one model wins over the tables of a weaker one; what is ignored is worth a word."""
    kept, ignored = list[Layer](), list[str]()
    for index, layer in enumerate(layers):
        stronger = (given for one in layers[index + 1 :] for path, given in one.items() if path in _NAMES_ONE)
        naming = next(stronger, None)
        if "models" in layer and naming is not None:
            ignored.append(f"{layer['models'].name}: not served, as {naming.name} names one model")
            kept.append({path: given for path, given in layer.items() if path != "models"})
        else:
            kept.append(layer)
    return kept, ignored


def _engine_chosen(layer: Layer) -> Layer:
    """Naming an upstream chooses it, unless the same source says otherwise."""
    url = layer.get("upstream.url")
    if url is None or "engine" in layer:
        return layer
    return {**layer, "engine": Given(_kind_at(url.value), url.source, url.name)}


def _kind_at(url: object) -> EngineKind:
    """The engine at an upstream's address, or at the first of several."""
    urls = cast("list[object] | tuple[object, ...]", url) if isinstance(url, list | tuple) else (url,)
    return EngineKind.TRITON if urls and is_grpc(str(urls[0])) else EngineKind.UPSTREAM
