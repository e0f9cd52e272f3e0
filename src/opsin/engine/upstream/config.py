"""Where the upstream is and how long to wait for it. Knows no request."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from opsin.prompt.guard import OnSpecialTokens


class UpstreamConfig(BaseModel):
    """Settings of one OpenAI-compatible upstream."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(description="base of the server, with or without /v1")
    model: str | None = Field(default=None, description="name to send; default: the first that the upstream lists")
    api_key: SecretStr | None = Field(default=None, description="sent as a bearer token to the server that is asked")
    connect_timeout_s: float = Field(default=5.0, gt=0, description="for a connection")
    read_timeout_s: float = Field(
        default=600.0, gt=0, description="longest silence between two reads, prefill included; no limit on an answer"
    )
    max_connections: int = Field(default=100, ge=1, description="requests at the upstream at once")
    ready_timeout_s: float = Field(default=60.0, ge=0, description="wait so long at the start for the upstream")
    special_tokens_in_text: OnSpecialTokens = Field(
        default=OnSpecialTokens.BREAK,
        description="what becomes of a text that spells a special token: break the token up, or reject the request",
    )
    tokenizer: str | None = Field(
        default=None,
        description="folder or hub id whose tokenizer says which tokens are special; default: all known ones",
    )
    allowed_special_tokens: tuple[str, ...] = Field(
        default=(), description="special tokens that users may write, such as DeepSeek-OCR's <|grounding|>"
    )
    health_interval_s: float = Field(default=5.0, gt=0, description="between two looks at the upstream")

    @field_validator("url")
    @classmethod
    def _normalise(cls, url: str) -> str:
        """Ends in ``/v1``, so that routes can be appended."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("expected http://host:port or https://host:port, with or without /v1")
        _ = parts.port  # raises ValueError when it is no port
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("expected no user, query or fragment; a key belongs into api_key")
        base = url.rstrip("/")
        return base if base.endswith("/v1") else f"{base}/v1"
