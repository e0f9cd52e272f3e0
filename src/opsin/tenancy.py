"""What the settings say of tenants: where their keys, their limits and the server's secret come from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from limits.aio.storage import MemoryStorage

from opsin.cache.keys import Scopes
from opsin.core.errors import ConfigError
from opsin.core.problems import Problem
from opsin.gateway.auth import Auth
from opsin.gateway.config import GatewayConfig
from opsin.settings import Settings
from opsin.tenants.key_file import KeyFile
from opsin.tenants.key_redis import RedisKeys
from opsin.tenants.quota import Quotas, SharedQuotas, WindowQuotas
from opsin.tenants.redis import connect
from opsin.tenants.secret import read_or_make_secret
from opsin.tenants.store import KeyRing, KeyStore


def problems(settings: Settings) -> Iterator[Problem]:
    """What contradicts itself; nothing is opened."""
    config = settings.gateway
    if config.api_keys_in_redis and settings.redis_url is None:
        yield Problem("--api-keys-in-redis needs --redis-url", ("gateway.api_keys_in_redis", "redis_url"))
    if config.api_keys_in_redis and config.api_keys_file is not None:
        yield Problem("--api-keys-file and --api-keys-in-redis: keys are kept in one place", ("gateway.api_keys_file",))
    if settings.redis_url is not None and _secret_path(config) is None:
        yield Problem(
            "--redis-url needs --server-secret-file: a file that all replicas have, as they share what it protects",
            ("redis_url", "gateway.server_secret_file"),
        )


def key_store(settings: Settings) -> KeyStore | None:
    """Where keys of many tenants are kept; None where there are none. Raises ConfigError."""
    config = settings.gateway
    if config.api_keys_in_redis:
        return RedisKeys(connect(_redis_url(settings)))
    return None if config.api_keys_file is None else KeyFile(config.api_keys_file)


def auth(settings: Settings) -> Auth:
    """Not started yet. Raises ConfigError."""
    store, config = key_store(settings), settings.gateway
    return Auth(config.api_key, KeyRing(store) if store else None, settings.limits)


def quotas(settings: Settings) -> Quotas:
    """Shared by the gateways that share a Redis. Raises ConfigError."""
    return WindowQuotas(MemoryStorage()) if settings.redis_url is None else SharedQuotas(connect(_redis_url(settings)))


def scopes(settings: Settings) -> Scopes:
    """Stable wherever there is something that outlives a process. Raises ConfigError."""
    path = _secret_path(settings.gateway)
    return Scopes(None if path is None else read_or_make_secret(path))


def _secret_path(config: GatewayConfig) -> Path | None:
    if config.server_secret_file is not None or config.api_keys_file is None:
        return config.server_secret_file
    return config.api_keys_file.with_name(f"{config.api_keys_file.name}.secret")


def _redis_url(settings: Settings) -> str:
    if settings.redis_url is None:
        raise ConfigError("--redis-url is missing")
    return settings.redis_url.get_secret_value()
