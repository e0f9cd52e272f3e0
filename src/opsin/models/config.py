"""How models come from the Hugging Face Hub. Knows no request."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class HubConfig(BaseModel):
    """Access to the Hub. What is not set here follows ``HF_TOKEN``, ``HF_HUB_OFFLINE`` and ``HF_HOME``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    token: SecretStr | None = Field(default=None, description="token for gated and private models; default: HF_TOKEN")
    offline: bool = Field(default=False, description="only what is downloaded already; also HF_HUB_OFFLINE=1")
    download_dir: Path | None = Field(default=None, description="where models are kept; default: the Hub's own cache")
