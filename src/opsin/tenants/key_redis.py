"""Keys in Redis, for gateways that share them: in one that never evicts, so not the one of a cache."""

from __future__ import annotations

from collections.abc import Awaitable, Hashable, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from pydantic import ValidationError

from opsin.tenants.keys import ApiKey, newest
from opsin.tenants.store import StoreUnreachable

if TYPE_CHECKING:
    from redis.asyncio import Redis

KEYS = "opsin:keys"
"""A hash: id → one key as JSON."""
VERSION = "opsin:keys:version"
"""A number that grows with each change, in the same transaction."""

T = TypeVar("T")


class RedisKeys:
    """See KeyStore. ``client`` is closed with it."""

    def __init__(self, client: Redis) -> None:
        self._client = client

    async def version(self) -> Hashable:
        """See KeyStore."""
        return await _asked(self._client.get(VERSION))

    async def all(self) -> Sequence[ApiKey]:
        """See KeyStore."""
        lines = await _asked(cast("Awaitable[dict[bytes, bytes]]", self._client.hgetall(KEYS)))
        return sorted(map(_parsed, lines.values()), key=lambda key: (key.created, key.id))

    async def newest(self, tenant: str, now: float) -> ApiKey | None:
        """See KeyStore; of several that were made in one second, any."""
        return newest(await self.all(), tenant, now)

    async def add(self, key: ApiKey) -> None:
        """See KeyStore."""
        async with self._client.pipeline(transaction=True) as change:
            change.hset(KEYS, key.id, key.line())
            change.incr(VERSION)
            await _asked(change.execute())

    async def remove(self, key_id: str) -> ApiKey | None:
        """See KeyStore."""
        line = await _asked(cast("Awaitable[bytes | None]", self._client.hget(KEYS, key_id)))
        if line is None:
            return None
        async with self._client.pipeline(transaction=True) as change:
            change.hdel(KEYS, key_id)
            change.incr(VERSION)
            await _asked(change.execute())
        return _parsed(line)

    async def close(self) -> None:
        """See KeyStore."""
        await self._client.aclose()


async def _asked(answer: Awaitable[T]) -> T:
    from redis.exceptions import RedisError

    try:
        return await answer
    except (RedisError, OSError) as error:
        raise StoreUnreachable(f"--redis-url: Redis does not answer ({type(error).__name__})") from None


def _parsed(line: bytes) -> ApiKey:
    try:
        return ApiKey.model_validate_json(line)
    except ValidationError:
        raise StoreUnreachable(f"--redis-url: {KEYS} holds what is no key of opsin's") from None
