"""API keys and what they allow.

A key is 256 random bits, so one SHA-256 is the right way to keep it: what makes password hashes slow is that people
choose passwords which can be guessed, and nobody guesses 256 bits. A slow hash would only cost every request its
time. What is kept cannot be turned back into the key.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, Field

from opsin.core.errors import ConfigError

_PREFIX = "sk-opsin-"
_SECRET_BYTES = 32
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Limits(BaseModel):
    """What one tenant may use; None is no limit of this kind. Counted on the tenant, whichever of its keys is sent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    requests_per_minute: int | None = Field(default=None, ge=1, description="requests, answered or counted")
    images_per_minute: int | None = Field(default=None, ge=1, description="pictures of answered requests")
    image_tokens_per_minute: int | None = Field(default=None, ge=1, description="visual tokens of these pictures")
    max_concurrency: int | None = Field(default=None, ge=1, description="requests in the engine at once")
    max_queue: int | None = Field(
        default=None, ge=1, description="requests that wait for their turn, or are being loaded"
    )

    def over(self, general: Limits) -> Limits:
        """These, and the ``general`` ones where these say nothing."""
        return general.model_copy(update=self.model_dump(exclude_none=True))


NO_LIMITS = Limits()


class ApiKey(BaseModel):
    """One key as it is kept. ``id`` is for people and logs and opens nothing; times are Unix seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(pattern=r"^[a-z0-9]{8}$")
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    tenant: str = Field(pattern=f"^{_TENANT.pattern}$")
    created: int
    expires: int | None = None
    admin: bool = False
    limits: Limits = NO_LIMITS

    def has_expired(self, now: float) -> bool:
        """At ``now``, in Unix seconds."""
        return self.expires is not None and now >= self.expires

    def line(self) -> str:
        """As one line of JSON, what is default left out."""
        return self.model_dump_json(exclude_defaults=True)


def newest(keys: Iterable[ApiKey], tenant: str, now: float) -> ApiKey | None:
    """The tenant's last one of ``keys``, in their order, that opens at ``now``, in Unix seconds; None if none does."""
    live = [key for key in keys if key.tenant == tenant and not key.has_expired(now)]
    return live[-1] if live else None


def digest_of(key: str) -> str:
    """What is kept of a key, 64 hex digits."""
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()


def new_key(
    tenant: str, *, lifetime_s: int | None = None, admin: bool = False, limits: Limits = NO_LIMITS
) -> tuple[str, ApiKey]:
    """A fresh key, to be shown once, and what is kept of it.

    Raises:
        ConfigError: the name of the tenant is none.
    """
    if not _TENANT.fullmatch(tenant):
        raise ConfigError(f"{tenant!r} is no name of a tenant: letters, digits, '.', '_' and '-', at most 64")
    key = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    created = int(time.time())
    kept = ApiKey(
        id=secrets.token_hex(4),
        digest=digest_of(key),
        tenant=tenant,
        created=created,
        expires=None if lifetime_s is None else created + lifetime_s,
        admin=admin,
        limits=limits,
    )
    return key, kept
