"""The one entrance: how many requests may be in progress, of whom, and whose turn it is.

A request enters with ``admit``, which knows its key and nothing else; what it asks for becomes known step by step,
and each step charges its place before the next one costs anything: its pictures before one is loaded, their tokens
before one is decoded, and then it waits for its turn at the engine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Protocol

from opsin.core.errors import Code, MediaError, Overloaded, RateLimited, TooManyImages
from opsin.core.stages import Stage, Stopwatch
from opsin.gateway.auth import Caller
from opsin.tenants.lanes import Cost, Lanes
from opsin.tenants.quota import Meter, Quotas, Reading

_RETRY_AFTER_S = 1
_Ask = Callable[[str, Meter, int, int], Awaitable[Reading]]
"""Of ``Quotas``: with tenant, meter, limit and cost."""


class Turns(Protocol):
    """What a request asks before it costs anything."""

    async def images(self, count: int) -> None:
        """Before any is loaded. Raises RateLimited, MediaError."""
        ...

    async def turn(self, lanes: Lanes, cost: Cost, watch: Stopwatch) -> None:
        """Before any is decoded; returns when it may go to the engine. Raises RateLimited, MediaError, Overloaded."""
        ...


class Unlimited:
    """For callers in this process, who are their own operators."""

    async def images(self, count: int) -> None:
        """Never refused."""

    async def turn(self, lanes: Lanes, cost: Cost, watch: Stopwatch) -> None:
        """Always theirs."""


class Place:
    """One request in progress. Made by ``Admission.admit``; its slot at the engine is given back with it."""

    def __init__(self, caller: Caller, quotas: Quotas) -> None:
        self._caller = caller
        self._quotas = quotas
        self._readings: dict[Meter, Reading] = {}
        self._lanes: Lanes | None = None

    @property
    def is_running(self) -> bool:
        """Whether it had its turn."""
        return self._lanes is not None

    @property
    def readings(self) -> tuple[Reading, ...]:
        """Of the meters that have been asked."""
        return tuple(self._readings.values())

    async def request(self) -> None:
        """One more of this tenant. Raises RateLimited."""
        await self._charge(Meter.REQUESTS, self._caller.limits.requests_per_minute, 1)

    async def images(self, count: int) -> None:
        """See Turns. Of the tokens nothing is known yet but that no picture takes less than one."""
        limits = self._caller.limits
        await self._charge(Meter.IMAGES, limits.images_per_minute, count)
        if count and limits.image_tokens_per_minute is not None:
            _refuse_hopeless(Meter.IMAGE_TOKENS, limits.image_tokens_per_minute, count)
            await self._ask(self._quotas.check, Meter.IMAGE_TOKENS, limits.image_tokens_per_minute, count)

    async def turn(self, lanes: Lanes, cost: Cost, watch: Stopwatch) -> None:
        """See Turns."""
        await self._charge(Meter.IMAGE_TOKENS, self._caller.limits.image_tokens_per_minute, cost.image_tokens)
        tenant = self._caller.tenant
        if not lanes.try_enter(tenant, self._caller.limits.max_concurrency):
            with watch.stage(Stage.QUEUE):
                await lanes.enter(tenant, cost)
        self._lanes = lanes

    def leave(self) -> None:
        """Gives the slot back."""
        if self._lanes is not None:
            self._lanes.leave(self._caller.tenant)

    async def _charge(self, meter: Meter, limit: int | None, cost: int) -> None:
        if limit is None or cost == 0:
            return
        _refuse_hopeless(meter, limit, cost)
        await self._ask(self._quotas.charge, meter, limit, cost)

    async def _ask(self, ask: _Ask, meter: Meter, limit: int, cost: int) -> None:
        """Keeps what is left, also of a meter that refuses."""
        tenant = self._caller.tenant
        try:
            self._readings[meter] = await ask(tenant, meter, limit, cost)
        except RateLimited:
            self._readings[meter] = await self._quotas.read(tenant, meter, limit)
            raise


class Admission:
    """A bound on requests in progress, and on each tenant's part of them.

    ``shared``: there can be several tenants. Then none may hold more places than are left free, so that one alone, or
    several together, never make the server full for the others.
    """

    def __init__(self, max_requests: int, quotas: Quotas, *, shared: bool = False) -> None:
        self._max_requests = max_requests
        self._quotas = quotas
        self._shared = shared
        self._places: dict[str, set[Place]] = {}
        self.in_progress = 0

    @contextmanager
    def admit(self, caller: Caller) -> Generator[Place]:
        """Holds one place while the block runs.

        Raises:
            Overloaded: every place is taken.
            RateLimited: the tenant's own are.
        """
        self._refuse_excess(caller)
        place = Place(caller, self._quotas)
        places = self._places.setdefault(caller.tenant, set())
        places.add(place)
        self.in_progress += 1
        try:
            yield place
        finally:
            self.in_progress -= 1
            places.discard(place)
            if not places:
                self._places.pop(caller.tenant, None)
            place.leave()

    async def close(self) -> None:
        """Ends what quotas hold."""
        await self._quotas.close()

    def _refuse_excess(self, caller: Caller) -> None:
        if self.in_progress >= self._max_requests:
            raise Overloaded(
                f"{self._max_requests} requests are in progress, which is the limit", retry_after_s=_RETRY_AFTER_S
            )
        places = self._places.get(caller.tenant, set())
        if self._shared and len(places) >= self._max_requests - self.in_progress:
            raise _too_many(f"{len(places)} of this tenant are in progress, as many as are left for all others")
        max_queue = caller.limits.max_queue
        if max_queue is not None and (waiting := sum(not place.is_running for place in places)) >= max_queue:
            raise _too_many(f"{waiting} of this tenant wait for their turn; the limit is {max_queue} (max_queue)")


def _too_many(why: str) -> RateLimited:
    return RateLimited(why, code=Code.TOO_MANY_IN_PROGRESS, retry_after_s=_RETRY_AFTER_S)


def _refuse_hopeless(meter: Meter, limit: int, cost: int) -> None:
    """What is over a whole minute's share at once will be so for ever: no reason to try again."""
    if cost <= limit:
        return
    why = f"The request takes {cost} {meter}, and the limit is {limit} in a minute ({meter.setting})."
    if meter is Meter.IMAGES:
        raise TooManyImages(why, param="messages")
    raise MediaError(why, code=Code.TOO_MANY_IMAGE_TOKENS, param="messages")
