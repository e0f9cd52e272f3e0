"""Settings of the gateway."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, field_validator

from opsin.media.encoding import encoding_of


def _listed(value: object) -> object:
    return (value,) if isinstance(value, str | SecretStr) else value


class OverBudget(StrEnum):
    """What becomes of pictures that take more visual tokens than there is room for."""

    AUTO = "auto"  # scaled down where the client left the size open: detail auto and low
    REJECT = "reject"
    DOWNSCALE = "downscale"  # whatever the detail


class GatewayConfig(BaseModel):
    """HTTP side limits and access. Limits are the operator's; a client can only stay below them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=8000, ge=0, le=65535, description="0 takes a free one")
    metrics_port: int | None = Field(
        default=None, ge=0, le=65535, description="serves /metrics without a key, on the same host; else behind the key"
    )
    api_key: Annotated[tuple[SecretStr, ...], BeforeValidator(_listed)] = Field(
        default=(), description="one key or several, all of one tenant; without any every Authorization is accepted"
    )
    api_keys_file: Path | None = Field(
        default=None, description="keys of many tenants, made by 'opsin keys create'; read again when it changes"
    )
    api_keys_in_redis: bool = Field(default=False, description="keys of many tenants are in redis_url, not in a file")
    server_secret_file: Path | None = Field(
        default=None,
        description="from which tenants' cache scopes are made, the same at every replica; made where there is none; "
        "default: beside api_keys_file",
    )
    no_auth: bool = Field(default=False, description="serve on a public address without a key, on purpose")
    allowed_origins: tuple[str, ...] = Field(
        default=(), description='web pages that may ask from a browser (CORS); ["*"] is any'
    )
    root_path: str = Field(default="", description="path under which a proxy shows this server, e.g. /vlm")
    ssl_certfile: Path | None = Field(default=None, description="PEM certificate chain; turns HTTPS on")
    ssl_keyfile: Path | None = Field(default=None, description="PEM key, if it is not in the certificate's file")
    ssl_keyfile_password: SecretStr | None = Field(default=None, description="of an encrypted key")
    max_body_bytes: int = Field(default=32 * 2**20, ge=1024, description="request body, counted while reading")
    max_text_bytes: int = Field(default=4 * 2**20, ge=1024, description="request body without its pictures")
    max_header_bytes: int = Field(default=64 * 2**10, ge=1024, description="request line and headers together")
    header_timeout_s: float = Field(default=10.0, gt=0, description="for request line and headers to arrive")
    body_timeout_s: float = Field(default=60.0, gt=0, description="for a request body to arrive")
    min_body_bytes_per_s: int = Field(
        default=1024, ge=0, description="a request body that comes more slowly, after 5 s, is refused; 0: none is"
    )
    request_timeout_s: float = Field(default=600.0, gt=0, description="for a whole answer; then 504")
    drain_timeout_s: float = Field(
        default=30.0, ge=0, description="for requests in progress to finish after SIGTERM; then 503"
    )
    heartbeat_s: float = Field(default=10.0, gt=0, description="a silent stream gets a comment so often")
    max_image_tiles: int | None = Field(default=None, ge=1, description="tiles of one picture; default: what fits")
    max_image_tokens: int | None = Field(
        default=None, ge=1, description="visual tokens of one picture; default: what fits"
    )
    max_request_image_tokens: int | None = Field(
        default=None, ge=1, description="visual tokens of all pictures of a request; default: what fits"
    )
    over_budget: OverBudget = Field(
        default=OverBudget.AUTO,
        description="pictures that do not fit: refused (reject), scaled down (downscale), or as their detail says",
    )
    offload: bool = Field(
        default=False,
        description="send pictures to an engine of others at the size to which it would scale them itself",
    )
    offload_format: str = Field(
        default="jpeg:85", description="in which these are written: jpeg:QUALITY, webp-lossless or png"
    )
    max_requests: int = Field(default=256, ge=1, description="requests in progress; one more is answered 503")
    max_running: int | None = Field(
        default=None,
        ge=1,
        description="requests in the engine at once, others wait in fair order; default: half as many again as its "
        "max_num_seqs, or no limit where that is unknown",
    )
    max_queue_s: float = Field(default=120.0, gt=0, description="for a request's turn at the engine to come; then 503")

    @property
    def has_key_store(self) -> bool:
        """Whether there are keys of many tenants."""
        return self.api_keys_file is not None or self.api_keys_in_redis

    @field_validator("api_key")
    @classmethod
    def _sendable(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        """A key that no header can carry, an empty one above all, would lock out everyone or no one."""
        if not all(re.fullmatch(r"[\x21-\x7e]+", key.get_secret_value()) for key in keys):
            raise ValueError("must be visible ASCII characters without spaces, at least one")
        return keys

    @field_validator("offload_format")
    @classmethod
    def _written(cls, name: str) -> str:
        """One that a worker can write."""
        return encoding_of(name).name

    @field_validator("allowed_origins")
    @classmethod
    def _origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        """Browsers send scheme, host and port only; anything longer would never match."""
        for origin in origins:
            if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#\s]+", origin):
                raise ValueError('should be origins such as "https://example.com:8443", without a path, or "*"')
        return origins

    @field_validator("root_path")
    @classmethod
    def _rooted(cls, path: str) -> str:
        """As a prefix of paths."""
        if path.strip("/") and not path.startswith("/"):
            raise ValueError("should start with /")
        return path.rstrip("/")
