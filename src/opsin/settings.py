"""One settings object: ``opsin.toml``, then ``OPSIN_*``, then flags, in rising precedence.

Composes the configuration of each package; nothing below this file reads the environment.
"""

from __future__ import annotations

import tomllib
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from opsin.core.errors import ConfigError
from opsin.core.stages import Stage
from opsin.engine.fake import FakeConfig
from opsin.engine.local.config import LocalOptions
from opsin.engine.upstream.config import UpstreamConfig
from opsin.gateway.config import GatewayConfig
from opsin.media.config import MediaConfig

DEMO_MODEL = "demo"
"""The model shipped in the package."""


class EngineKind(StrEnum):
    """Which engine answers."""

    LOCAL = "local"
    UPSTREAM = "upstream"
    FAKE = "fake"


class Settings(BaseSettings):
    """Everything an operator can set."""

    model_config = SettingsConfigDict(
        env_prefix="OPSIN_", env_nested_delimiter="__", toml_file="opsin.toml", extra="forbid", frozen=True
    )

    model: str = Field(default=DEMO_MODEL, description="folder, hub id, or 'demo'")
    revision: str | None = Field(default=None, description="commit of a hub model; unpinned models are logged")
    max_model_len: int | None = Field(
        default=None, gt=1, description="tokens of prompt and output; default: the model's"
    )
    served_model_name: tuple[str, ...] = ()
    engine: EngineKind = EngineKind.LOCAL
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    gateway: GatewayConfig = GatewayConfig()
    media: MediaConfig = MediaConfig()
    local: LocalOptions = LocalOptions()
    upstream: UpstreamConfig | None = None
    fake: FakeConfig = FakeConfig()
    inject_delay_s: dict[Stage, float] = Field(
        default_factory=dict[Stage, float], description="fault injection: seconds added to a stage of every request"
    )
    inject_out_of_memory: dict[Stage, int] = Field(
        default_factory=dict[Stage, int], description="fault injection: so many first calls of an engine stage fail"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags over environment over file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def load_settings(flags: dict[str, Any]) -> Settings:
    """Settings from all sources; ``flags`` is nested like Settings and holds only what the user typed.

    Raises:
        ConfigError: listing every wrong value at once.
    """
    try:
        return Settings(**flags)
    except ValidationError as error:
        lines = [
            f"  {'.'.join(str(step) for step in problem['loc'])}: {problem['msg']}"
            for problem in error.errors(include_url=False, include_input=False)
        ]
        raise ConfigError("these settings are wrong:\n" + "\n".join(lines)) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"opsin.toml is not TOML: {error}") from None
    except SettingsError as error:
        raise ConfigError(f"an OPSIN_ variable cannot be read: {error}") from None
