"""Where the upstream is and how long to wait for it. Knows no request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from opsin.engine.upstream.dialect import UpstreamKind
from opsin.prompt.guard import OnSpecialTokens

_GRPC = ("grpc://", "grpcs://")


def is_grpc(url: str) -> bool:
    """Whether a Triton server is named, which speaks gRPC, plain or in TLS."""
    return url.startswith(_GRPC)


class UpstreamConfig(BaseModel):
    """Settings of one OpenAI-compatible upstream, or of one Triton server."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(description="base of the server, with or without /v1; grpc://host:port is a Triton")
    model: str | None = Field(default=None, description="name to send; default: the first that the upstream lists")
    kind: UpstreamKind = Field(default=UpstreamKind.AUTO, description="which engine it is; auto: as it says itself")
    exclusive: bool = Field(
        default=False,
        description="nobody else asks this vLLM: pictures that it has go by name, without their bytes",
    )
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
    replicas: tuple[str, ...] = Field(
        default=(), description="further servers of the same model; also as several of url, see docs/replicas.md"
    )
    draining: tuple[str, ...] = Field(
        default=(), description="those of them that get no new request, while what runs there ends"
    )

    @property
    def servers(self) -> dict[str, UpstreamConfig]:
        """All of them by their URL, as if each were alone."""
        alone = {"replicas": (), "draining": ()}
        return {url: self.model_copy(update={"url": url, **alone}) for url in (self.url, *self.replicas)}

    @model_validator(mode="before")
    @classmethod
    def _several(cls, stated: object) -> object:
        """Several of ``url`` are the first one and its replicas."""
        if not isinstance(stated, dict):
            return stated
        fields = cast("dict[str, object]", stated)
        urls = fields.get("url")
        if not isinstance(urls, list | tuple) or not urls:
            return fields
        first, *others = cast("Sequence[object]", urls)
        replicas = cast("Sequence[object]", fields.get("replicas") or ())
        return {**fields, "url": first, "replicas": [*others, *replicas]}

    @field_validator("replicas", "draining")
    @classmethod
    def _normalise_all(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(cls._normalise, urls))

    @model_validator(mode="after")
    def _each_once(self) -> UpstreamConfig:
        if len(self.servers) < 1 + len(self.replicas):
            raise ValueError("url and replicas should name each server once")
        if strange := set(self.draining) - self.servers.keys():
            raise ValueError(f"draining should name servers of url and replicas, not {', '.join(sorted(strange))}")
        return self

    @field_validator("url")
    @classmethod
    def _normalise(cls, url: str) -> str:
        """Ends in ``/v1``, so that routes can be appended; a Triton has none."""
        if is_grpc(url):
            return _grpc_target(url)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("expected http://host:port or https://host:port, with or without /v1")
        _ = parts.port  # raises ValueError when it is no port
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("expected no user, query or fragment; a key belongs into api_key")
        base = url.rstrip("/")
        return base if base.endswith("/v1") else f"{base}/v1"


def _grpc_target(url: str) -> str:
    parts = urlsplit(url)
    rest = (parts.username, parts.password, parts.path.strip("/"), parts.query, parts.fragment)
    if not parts.hostname or not parts.port or any(rest):  # reading a port that is none raises ValueError too
        raise ValueError("expected grpc://host:port or grpcs://host:port, and nothing after it")
    return f"{parts.scheme}://{parts.netloc}"
