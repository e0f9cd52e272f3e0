"""What may be fetched, from where and how fast. Everything is off until the operator names hosts. Knows no request."""

from __future__ import annotations

import re
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    SecretStr,
    field_validator,
    model_validator,
)

from opsin.media.addresses import Network
from opsin.media.hosts import parse_pattern

Port = Annotated[int, Field(ge=1, le=65535)]

_PROXY = re.compile(r"http://([^\s/@:]+:[^\s/@:]*@)?([^\s/@:\[\]]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}/?")


def _network(value: object) -> Network:
    try:
        return ip_network(str(value))
    except ValueError:
        raise ValueError("should be a network such as 10.1.0.0/16, without bits beyond its length") from None


def _pattern(text: str) -> str:
    parse_pattern(text)
    return text


class FetchConfig(BaseModel):
    """Pictures that a request names by URL. A request can change none of it. Sizes are bytes, times seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    allowed_media_domains: tuple[Annotated[str, AfterValidator(_pattern)], ...] = ()
    """Hosts from which pictures may be fetched over https: images.example.com, or *.example.com for all below it.
    Without any, and without allow_public_https, nothing is fetched."""
    allow_public_https: bool = False
    """Fetch over https from every public host."""
    allow_plain_http: bool = False
    """Also http, from the same hosts."""
    allow_ip_literals: bool = False
    """Also URLs with an address in the place of the host's name, where the address is allowed."""
    allowed_private_networks: tuple[Annotated[Network, PlainValidator(_network)], ...] = ()
    """Networks that are not public and may be fetched from all the same, as 10.1.0.0/16. Link-local addresses and
    clouds' metadata services stay refused unless a network names them and little else, as 169.254.7.0/24."""
    allowed_ports: tuple[Port, ...] = ()
    """Ports that a URL may name; without one it is 443 or 80."""
    max_redirects: int = Field(default=0, ge=0, le=3)
    """Redirects to follow, each judged like a URL of its own; never from https to http."""
    proxy: SecretStr | None = None
    """http://HOST:PORT of an egress proxy. It resolves the names, so it has to refuse private addresses itself. Proxies
    of the environment are never used."""
    ca_file: Path | None = None
    """PEM certificates to trust besides the system's."""

    max_remote_images: int = Field(default=8, ge=1)
    """Pictures that one request may name by http or https."""
    max_bytes_per_request: int = Field(default=32 * 2**20, ge=1)
    """Bytes of all pictures of one request that do not come with it."""
    max_fetches: int = Field(default=32, ge=1)
    """Fetches at once; each may hold max_image_bytes."""
    dns_timeout_s: float = Field(default=2.0, gt=0)
    """To find a host's addresses."""
    connect_timeout_s: float = Field(default=2.0, gt=0)
    """To connect, TLS included."""
    first_byte_timeout_s: float = Field(default=3.0, gt=0)
    """From the request to the end of the answer's headers."""
    total_timeout_s: float = Field(default=8.0, gt=0)
    """From the first step to the last byte, over all redirects."""
    min_bytes_per_s: int = Field(default=4096, ge=0)
    """A body that comes more slowly, after its first second, is given up."""

    @property
    def enabled(self) -> bool:
        """Whether anything may be fetched at all."""
        return bool(self.allowed_media_domains) or self.allow_public_https

    @model_validator(mode="after")
    def _literals_are_allowed(self) -> Self:
        literals = [text for text in self.allowed_media_domains if parse_pattern(text).host.address]
        if literals and not self.allow_ip_literals:
            raise ValueError(f"allowed_media_domains holds the address {literals[0]}, which needs --allow-ip-literals")
        return self

    @field_validator("proxy")
    @classmethod
    def _proxy_is_usable(cls, proxy: SecretStr | None) -> SecretStr | None:
        if proxy is not None and not _PROXY.fullmatch(proxy.get_secret_value()):
            raise ValueError("should be http://HOST:PORT or http://USER:PASSWORD@HOST:PORT")
        return proxy
