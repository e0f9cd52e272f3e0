"""Who may ask. With no key configured any ``Authorization`` is accepted; the tenant comes from the key alone."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import SecretStr

from opsin.core.errors import ConfigError, Forbidden, Unauthorized
from opsin.gateway.config import GatewayConfig
from opsin.tenants.keys import NO_LIMITS, Limits
from opsin.tenants.store import KeyRing

ANONYMOUS = "anonymous"
SINGLE_TENANT = "default"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. ``key_id`` is None where the key has none, or there is no key."""

    tenant: str
    limits: Limits = NO_LIMITS
    key_id: str | None = None
    is_admin: bool = False


class Auth:
    """Checks the ``Authorization`` header of a request.

    ``api_keys`` are all of one tenant. ``ring`` has those of many; without one, whoever may ask at all is admin too,
    as there is nobody else. ``limits`` are of everyone whose key says nothing else.
    """

    def __init__(self, api_keys: Sequence[SecretStr], ring: KeyRing | None = None, limits: Limits = NO_LIMITS) -> None:
        self._digests = [_digest(key.get_secret_value()) for key in api_keys]
        self._ring = ring
        self._limits = limits

    async def start(self) -> None:
        """Reads the keys. Raises ConfigError."""
        if self._ring is not None:
            await self._ring.load()

    async def close(self) -> None:
        """Ends what the keys are read from."""
        if self._ring is not None:
            await self._ring.close()

    async def caller(self, authorization: str | None) -> Caller:
        """Who sent a request.

        Raises:
            Unauthorized: keys are configured and the header carries none of them. It is the same for a wrong one, an
            expired one and a revoked one.
        """
        if not self._digests and self._ring is None:
            return Caller(ANONYMOUS, self._limits, is_admin=True)
        scheme, _, sent = (authorization or "").partition(" ")
        caller = await self._known(sent.strip()) if scheme.lower() == "bearer" else None
        if caller is None:
            raise Unauthorized("a valid API key is needed: 'Authorization: Bearer …'")
        return caller

    async def admin(self, authorization: str | None) -> Caller:
        """Who sent a request that only an admin may.

        Raises:
            Unauthorized: as ``caller``.
            Forbidden: the key is no admin's.
        """
        caller = await self.caller(authorization)
        if not caller.is_admin:
            raise Forbidden("this route needs an admin key")
        return caller

    async def _known(self, sent: str) -> Caller | None:
        # Digests are compared, all of them, so that neither the time nor the length of a wrong key tells anything.
        found = [hmac.compare_digest(_digest(sent), digest) for digest in self._digests]
        kept = await self._ring.find(sent) if self._ring is not None else None
        if any(found):
            return Caller(SINGLE_TENANT, self._limits, is_admin=self._ring is None)
        if kept is None:
            return None
        return Caller(kept.tenant, kept.limits.over(self._limits), kept.id, kept.admin)


def check_exposure(config: GatewayConfig) -> None:
    """Refuses to serve strangers by accident.

    Raises:
        ConfigError: the host is not loopback, and neither keys nor ``--no-auth`` were given.
    """
    if config.api_key or config.has_key_store or config.no_auth or _is_loopback(config.host):
        return
    raise ConfigError(
        f"--host {config.host} can be reached from other machines. Choose one: "
        "--api-key KEY (clients send it as a bearer token), --api-keys-file FILE (many tenants), "
        "--no-auth (serve everyone), or --host 127.0.0.1"
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
