"""What the settings say of tenants: where their keys, their limits and the server's secret come from."""

from __future__ import annotations

from collections.abc import Iterator

from limits.aio.storage import MemoryStorage

from opsin.core.errors import ConfigError
from opsin.core.problems import Problem
from opsin.gateway.auth import Auth
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


def server_secret(settings: Settings) -> bytes | None:
    """From which scopes are made; None where the operator has no place for one. Raises ConfigError."""
    config = settings.gateway
    path = config.server_secret_file
    if path is None and config.api_keys_file is not None:
        path = config.api_keys_file.with_name(f"{config.api_keys_file.name}.secret")
    return None if path is None else read_or_make_secret(path)


def _redis_url(settings: Settings) -> str:
    if settings.redis_url is None:
        raise ConfigError("--redis-url is missing")
    return settings.redis_url.get_secret_value()
