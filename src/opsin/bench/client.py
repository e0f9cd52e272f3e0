"""One request on a pooled connection, and what was seen of it. Knows no schedule."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence

from opsin.bench.classify import Judgement, classify
from opsin.bench.http import Connection, Endpoint
from opsin.bench.reading import Reading
from opsin.bench.record import Outcome, Sight

_MAX_IDLE_NS = 4 * 10**9
"""Under uvicorn's 5 s: a request must not meet a connection that the server is closing, as it is not sent again."""
_DRAIN_S = 0.1
"""For the last bytes of HTTP after the answer; a server that keeps them back costs a connection, and no time."""


class Pool:
    """Open connections to one server, as many as are asked for at once: nobody waits for a free one."""

    def __init__(self, endpoint: Endpoint, clock: Callable[[], int]) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._idle: list[Connection] = []

    async def take(self) -> tuple[Connection, int | None]:
        """A connection, and the nanoseconds it took to open it, None if it was open. Raises OSError."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and self._clock() - connection.idle_since < _MAX_IDLE_NS:
                return connection, None
            connection.close()
        start = self._clock()
        connection = await Connection.open(self._endpoint, self._clock)
        return connection, self._clock() - start

    def give_back(self, connection: Connection) -> None:
        """For the next request."""
        connection.idle_since = self._clock()
        self._idle.append(connection)

    def close(self) -> None:
        """Closes what is idle."""
        while self._idle:
            self._idle.pop().close()


class Client:
    """Asks one server. ``clock`` gives nanoseconds since the run's zero."""

    def __init__(
        self,
        endpoint: Endpoint,
        clock: Callable[[], int],
        *,
        api_key: str | None,
        timeout_s: float,
        demand_length: bool,
    ) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._demand_length = demand_length
        self._pool = Pool(endpoint, clock)

    async def ask(self, sight: Sight, request_id: str, body: Sequence[memoryview]) -> None:
        """Sends one request and fills in what is seen of it, its outcome too. Raises nothing but CancelledError."""
        reading = Reading(sight)
        sight.t_begin = self._clock()
        limit = asyncio.timeout(self._timeout_s)
        try:
            async with limit:
                connection, sight.connect_ns = await self._pool.take()
                await self._exchange(connection, reading, request_id, body)
        except OSError as error:  # TimeoutError is one
            _judge(sight, self._of_time() if limit.expired() else _of_connecting(error))
        except asyncio.CancelledError:
            if not sight.t_end:
                sight.outcome = Outcome.CANCELLED
            raise
        finally:
            sight.t_end = sight.t_end or self._clock()

    async def _exchange(
        self, connection: Connection, reading: Reading, request_id: str, body: Sequence[memoryview]
    ) -> None:
        sight = reading.sight
        num_bytes = sum(len(piece) for piece in body)
        head = self._endpoint.head(request_id=request_id, body_bytes=num_bytes, api_key=self._api_key)
        reusable = False
        try:
            sight.t_send0 = self._clock()
            sight.t_send1 = await connection.send(reading, (head, *body))
            await connection.answered()
            sight.t_end = self._clock()
            _judge(sight, classify(reading.answer, demand_length=self._demand_length))
            reusable = sight.t_send1 is not None and await connection.drained(_DRAIN_S)
        finally:
            if reusable:
                self._pool.give_back(connection)
            else:
                connection.close()

    def close(self) -> None:
        """Closes idle connections."""
        self._pool.close()

    def _of_time(self) -> Judgement:
        return Judgement(Outcome.CLIENT_TIMEOUT, f"no end after {self._timeout_s:g} s")


def _of_connecting(error: OSError) -> Judgement:
    excerpt = f"{type(error).__name__}: {error}"
    if isinstance(error, socket.gaierror):
        return Judgement(Outcome.DNS, excerpt)
    if isinstance(error, ssl.SSLError):
        return Judgement(Outcome.TLS, excerpt)
    return Judgement(Outcome.CONNECT, excerpt)


def _judge(sight: Sight, judgement: Judgement) -> None:
    sight.outcome, sight.error_excerpt, sight.error_code = judgement.outcome, judgement.excerpt, judgement.code
