"""Who may ask. With no key configured any ``Authorization`` is accepted; the tenant comes from the key alone."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Sequence

from pydantic import SecretStr

from opsin.core.errors import ConfigError, Unauthorized
from opsin.gateway.config import GatewayConfig

ANONYMOUS = "anonymous"
SINGLE_TENANT = "default"


class Auth:
    """Checks the ``Authorization`` header of a request."""

    def __init__(self, api_keys: Sequence[SecretStr]) -> None:
        self._digests = [_digest(key.get_secret_value()) for key in api_keys]

    def tenant(self, authorization: str | None) -> str:
        """The tenant of a request.

        Raises:
            Unauthorized: keys are configured and the header carries none of them.
        """
        if not self._digests:
            return ANONYMOUS
        scheme, _, key = (authorization or "").partition(" ")
        # Digests are compared, all of them, so that neither the time nor the length of a wrong key tells anything.
        found = [hmac.compare_digest(_digest(key.strip()), digest) for digest in self._digests]
        if scheme.lower() != "bearer" or not any(found):
            raise Unauthorized("a valid API key is needed: 'Authorization: Bearer …'")
        return SINGLE_TENANT


def check_exposure(config: GatewayConfig) -> None:
    """Refuses to serve strangers by accident.

    Raises:
        ConfigError: the host is not loopback, and neither a key nor ``--no-auth`` was given.
    """
    if config.api_key or config.no_auth or _is_loopback(config.host):
        return
    raise ConfigError(
        f"--host {config.host} can be reached from other machines. Choose one: "
        "--api-key KEY (clients send it as a bearer token), --no-auth (serve everyone), or --host 127.0.0.1"
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
