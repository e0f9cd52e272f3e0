"""The connection to Redis that keys and limits share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opsin.core.errors import ConfigError

if TYPE_CHECKING:
    from redis.asyncio import Redis

TIMEOUT_S = 1.0
"""For connecting and for each answer: who waits is a request, and there is always a way to go on without."""

MISSING = "--redis-url needs a package that is not installed: pip install 'opsin[redis]'"


def connect(url: str) -> Redis:
    """A client; nothing is dialled before its first command.

    Raises:
        ConfigError: the package is not installed, or the URL is none of Redis's.
    """
    try:
        from redis.asyncio import Redis
    except ImportError:
        raise ConfigError(MISSING) from None
    try:
        return Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
    except ValueError:
        raise ConfigError("--redis-url: should be redis://…, rediss://… or unix:///…") from None
