"""Calls to a Redis server: short, guarded by a breaker, and failing in one way. The only place that imports redis."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from opsin.cache.breaker import Breaker
from opsin.cache.tier import TierError
from opsin.core.errors import ConfigError

T = TypeVar("T")

_MAX_CONNECTIONS = 16
_EVICTING = "allkeys-"
_REFUSED, _FULL = "refused", "full"
_PAUSED = "paused_after_failures"  # the breaker is open: it was not asked
_ANSWERS = (_REFUSED, _FULL)
"""Failures of one command at a server that answers: others go on."""


class RedisLink:
    """One server. ``timeout_s`` is for a whole call, connecting and waiting for a connection included."""

    def __init__(self, url: str, timeout_s: float) -> None:
        """Connects to nothing yet. Raises ConfigError without the extra, or for an address that is none."""
        try:
            from redis import asyncio as client  # an optional dependency
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
        except ImportError:
            raise ConfigError("--redis-url needs pip install opsin[redis]") from None
        try:
            pool = client.BlockingConnectionPool.from_url(  # pyright: ignore[reportUnknownVariableType] untyped kwargs
                url,
                max_connections=_MAX_CONNECTIONS,
                timeout=timeout_s,
                retry=Retry(NoBackoff(), 0),
                client_name="opsin",
                protocol=2,  # what the client makes of a stream's entries differs by it
            )
        except ValueError as error:
            raise ConfigError(f"--redis-url: {error}") from None
        self._client: Any = client.Redis(connection_pool=cast("Any", pool))
        self._timeout_s = timeout_s
        self._breaker = Breaker()

    @property
    def timeout_s(self) -> float:
        """Of one call."""
        return self._timeout_s

    @property
    def is_open(self) -> bool:
        """See Breaker."""
        return self._breaker.is_open

    async def command(self, *words: str | bytes | float) -> Any:
        """What the server answers. Raises TierError."""
        return await self._guarded(lambda: self._client.execute_command(*words))

    async def commands(self, *lines: tuple[str | bytes | float, ...]) -> list[Any]:
        """Several in one go, not as one. Raises TierError when the first one fails; others' failures are returned."""
        pipeline = self._client.pipeline(transaction=False)
        for words in lines:
            pipeline.execute_command(*words)
        answers = await self._guarded(lambda: pipeline.execute(raise_on_error=False))
        if isinstance(answers[0], Exception):
            raise TierError(_REFUSED) from answers[0]
        return answers

    async def waiting(self, wait_s: float, *words: str | bytes | float) -> Any:
        """A command that the server may leave unanswered for ``wait_s``; the breaker has no part in it."""
        return await self._timed(self._client.execute_command(*words), wait_s + self._timeout_s)

    async def policy_problem(self) -> str | None:
        """Why the server takes nothing, or what is wrong with how it evicts; None also where it does not say.

        Raises TierError.
        """
        role = await self._asked("ROLE")
        if role and _text(role[0]) == "slave":
            return "Redis is a replica, which takes no writes: nothing is kept or deleted there; name its primary"
        found = {
            _text(name): _text(value) for name, value in pairs_of(await self._asked("CONFIG", "GET", "maxmemory*"))
        }
        policy = found.get("maxmemory-policy", "")
        if policy.startswith(_EVICTING):
            return (
                f"Redis evicts by {policy}, tombstones and uploaded files among the rest: deleted pictures may come "
                "back, and files may go; set maxmemory-policy to volatile-ttl or noeviction"
            )
        if found.get("maxmemory") == "0":
            return "Redis has no maxmemory: all of the machine's memory is its own; set one, and volatile-ttl"
        return None

    async def _asked(self, *words: str) -> Any:
        """Nothing where the server keeps the command to itself, as managed ones do. Raises TierError."""
        try:
            return await self.command(*words)
        except TierError as error:
            if str(error) != _REFUSED:
                raise
            return ()

    async def close(self) -> None:
        """Closes all connections."""
        await self._client.aclose()
        await self._client.connection_pool.disconnect()

    async def _guarded(self, call: Callable[[], Awaitable[T]]) -> T:
        if self._breaker.is_open:
            raise TierError(_PAUSED)
        try:
            answer = await self._timed(call(), self._timeout_s)
        except TierError as error:
            self._breaker.succeeded() if str(error) in _ANSWERS else self._breaker.failed()
            raise
        except asyncio.CancelledError:
            self._breaker.succeeded()  # nobody knows; a try that nobody waited for keeps nothing closed
            raise
        self._breaker.succeeded()
        return answer

    async def _timed(self, answer: Awaitable[T], seconds: float) -> T:
        from redis.exceptions import OutOfMemoryError, RedisError, ResponseError

        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            raise TierError("timeout") from None
        except OutOfMemoryError as error:
            raise TierError(_FULL) from error
        except ResponseError as error:
            raise TierError(_REFUSED) from error
        except (RedisError, OSError, ValueError) as error:  # the last is its parser's, of an answer that is none
            raise TierError("unreachable") from error


def pairs_of(answer: Any) -> list[tuple[Any, Any]]:
    """A map of Redis, which is a list in the older protocol."""
    return list(answer.items() if isinstance(answer, dict) else zip(answer[::2], answer[1::2], strict=False))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType] a foreign answer


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
