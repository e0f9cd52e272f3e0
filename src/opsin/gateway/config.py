"""Settings of the gateway."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator


class GatewayConfig(BaseModel):
    """HTTP side limits and access. Limits are the operator's; a client can only stay below them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    api_key: SecretStr | None = Field(default=None, description="the one key; without it any Authorization is accepted")
    no_auth: bool = Field(default=False, description="serve on a public address without a key, on purpose")
    max_body_bytes: int = Field(default=32 * 2**20, ge=1024, description="request body, counted while reading")
    max_text_bytes: int = Field(default=4 * 2**20, ge=1024, description="request body without its pictures")
    body_timeout_s: float = Field(default=60.0, gt=0, description="for a request body to arrive")
    request_timeout_s: float = Field(default=600.0, gt=0, description="for a whole answer; then 504")
    heartbeat_s: float = Field(default=10.0, gt=0, description="a silent stream gets a comment so often")
    max_requests: int = Field(default=256, ge=1, description="requests in progress; one more is answered 503")

    @field_validator("api_key")
    @classmethod
    def _sendable(cls, key: SecretStr | None) -> SecretStr | None:
        """A key that no header can carry, an empty one above all, would lock out everyone or no one."""
        if key is not None and not re.fullmatch(r"[\x21-\x7e]+", key.get_secret_value()):
            raise ValueError("must be visible ASCII characters without spaces, at least one")
        return key
