"""What each tenant has used in the last minute, by the sliding window counters of ``limits``.

A counter takes two numbers per tenant and meter, however large the amounts: this minute's, and the last one's, which
fades out linearly. In memory, or in Redis for several gateways; while Redis does not answer, each gateway counts for
itself.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from limits.aio.storage import MemoryStorage, RedisStorage

from opsin.core.errors import RateLimited
from opsin.telemetry.logs import fields

if TYPE_CHECKING:
    from redis.asyncio import Redis

logger = logging.getLogger(__name__)

_MINUTE_S = 60
_RETRY_REDIS_S = 5.0
"""After a failure nobody waits for Redis for so long."""


class Meter(StrEnum):
    """What is counted; by these words in headers."""

    REQUESTS = "requests"
    IMAGES = "images"
    IMAGE_TOKENS = "image-tokens"

    @property
    def setting(self) -> str:
        """The limit's name in ``Limits``."""
        return f"{self.replace('-', '_')}_per_minute"


@dataclass(frozen=True, slots=True)
class Reading:
    """One meter of one tenant. ``reset_s``: until all of it would be free again."""

    meter: Meter
    limit: int
    remaining: int
    reset_s: float


@dataclass(frozen=True, slots=True)
class Window:
    """A sliding window counter: ``previous`` counts by the share of a minute that is left of ``previous_s``,
    ``current`` in full until ``current_s`` minus a minute from now, when it becomes the previous one."""

    previous: int
    previous_s: float
    current: int
    current_s: float

    @property
    def used(self) -> int:
        """As ``limits`` rounds it."""
        return math.floor(self.previous * self.previous_s / _MINUTE_S + self.current)

    def wait_s(self, allowed: int) -> float:
        """Until no more than ``allowed`` is used, if nothing is added."""
        if self.current > allowed:
            return max(0.0, self.current_s - _MINUTE_S) + _MINUTE_S * (1 - allowed / self.current)
        if not self.previous:
            return 0.0
        return max(0.0, self.previous_s - (allowed - self.current) * _MINUTE_S / self.previous)


class Quotas(Protocol):
    """Counts. ``cost`` is never more than ``limit``."""

    async def charge(self, tenant: str, meter: Meter, limit: int, cost: int) -> Reading:
        """Takes ``cost``, all of it or nothing. Raises RateLimited with the time after which to try again."""
        ...

    async def check(self, tenant: str, meter: Meter, limit: int, cost: int) -> Reading:
        """The same, without taking anything."""
        ...

    async def read(self, tenant: str, meter: Meter, limit: int) -> Reading:
        """What is left: 0 also where more than ``limit`` was used, as under another key's. Never refuses."""
        ...

    async def close(self) -> None:
        """Ends connections."""
        ...


class WindowQuotas:
    """In a storage of ``limits``, by tenant and meter alone: a key with other limits goes on where the last one was.

    Raises whatever the storage does when it cannot be asked.
    """

    def __init__(self, storage: MemoryStorage | RedisStorage) -> None:
        self._storage = storage

    async def charge(self, tenant: str, meter: Meter, limit: int, cost: int) -> Reading:
        """See Quotas."""
        is_taken = await self._storage.acquire_sliding_window_entry(_name(tenant, meter), limit, _MINUTE_S, cost)
        window = await self._window(tenant, meter)
        if not is_taken:
            raise _refused(meter, limit, cost, window)
        return _reading(meter, limit, window)

    async def check(self, tenant: str, meter: Meter, limit: int, cost: int) -> Reading:
        """See Quotas."""
        window = await self._window(tenant, meter)
        if window.used + cost > limit:
            raise _refused(meter, limit, cost, window)
        return _reading(meter, limit, window)

    async def read(self, tenant: str, meter: Meter, limit: int) -> Reading:
        """See Quotas."""
        return _reading(meter, limit, await self._window(tenant, meter))

    async def close(self) -> None:
        """Nothing is held open."""

    async def _window(self, tenant: str, meter: Meter) -> Window:
        return Window(*await self._storage.get_sliding_window(_name(tenant, meter), _MINUTE_S))


class SharedQuotas:
    """In Redis as long as it answers, else in this process."""

    def __init__(self, client: Redis) -> None:
        storage = RedisStorage(
            "async+redis://",  # a form: the pool says where
            implementation="redispy",
            key_prefix="opsin:limits",
            connection_pool=client.connection_pool,  # pyright: ignore[reportArgumentType] as limits documents it
        )
        self._client = client
        self._failures = (OSError, ValueError, *_as_tuple(storage.base_exceptions))
        self._shared = WindowQuotas(storage)
        self._own = WindowQuotas(MemoryStorage())
        self._down_until = float("-inf")
        self._is_shared = True

    async def charge(self, tenant: str, meter: Meter, limit: int, cost: int) -> Reading:
        """See Quotas."""
        return await self._asked(lambda quotas: quotas.charge(tenant, meter, limit, cost))

    async def check(self, tenant: str, meter: Meter, limit: int, cost: int) -> Reading:
        """See Quotas."""
        return await self._asked(lambda quotas: quotas.check(tenant, meter, limit, cost))

    async def read(self, tenant: str, meter: Meter, limit: int) -> Reading:
        """See Quotas."""
        return await self._asked(lambda quotas: quotas.read(tenant, meter, limit))

    async def close(self) -> None:
        """See Quotas."""
        await self._client.aclose()
        await self._client.connection_pool.disconnect()

    async def _asked(self, ask: Callable[[Quotas], Awaitable[Reading]]) -> Reading:
        if (now := time.monotonic()) >= self._down_until:
            if not self._is_shared:
                self._down_until = now + _RETRY_REDIS_S  # one tries, and nobody else waits for what becomes of it
            try:
                reading = await ask(self._shared)
            except self._failures as error:
                self._lost(error)
            else:
                self._found()
                return reading
        return await ask(self._own)

    def _lost(self, error: Exception) -> None:
        self._down_until = time.monotonic() + _RETRY_REDIS_S
        if self._is_shared:
            self._is_shared = False
            logger.warning("%s", fields(event="limits_not_shared", error=type(error).__name__, retry_s=_RETRY_REDIS_S))

    def _found(self) -> None:
        if not self._is_shared:
            self._is_shared, self._down_until = True, float("-inf")
            logger.info("%s", fields(event="limits_shared"))


def _name(tenant: str, meter: Meter) -> str:
    return f"{tenant}/{meter}"


def _as_tuple(errors: type[Exception] | tuple[type[Exception], ...]) -> tuple[type[Exception], ...]:
    return errors if isinstance(errors, tuple) else (errors,)


def _reading(meter: Meter, limit: int, window: Window) -> Reading:
    return Reading(meter, limit, max(0, limit - window.used), window.wait_s(0))


def _refused(meter: Meter, limit: int, cost: int, window: Window) -> RateLimited:
    asked = "one more" if meter is Meter.REQUESTS else f"{cost} more"
    return RateLimited(
        f"{window.used} {meter} were used in the last minute, and {asked} would be over the limit of {limit} "
        f"({meter.setting})",
        retry_after_s=max(1, math.ceil(window.wait_s(limit - cost))),
    )
