"""Several engines that serve the same model as one engine.

    submit → choose (affinity, loads) → a replica → its stream
                 ▲                         │ it certainly has not begun
                 └─────────────────────────┘

A request goes to another replica only while nobody has begun it: the connection was refused, or the replica said before
any work that it is full. Anything else may have run, and is answered with its error. Knows no protocol and no address:
a name is whatever ``make`` makes an engine of.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from opsin.core.errors import EngineError, OpsinError
from opsin.core.together import together
from opsin.engine.api import (
    Capabilities,
    Engine,
    EngineStats,
    GenerationRequest,
    PurgeOutcome,
    PurgeReport,
    Reservation,
    StreamEvent,
)
from opsin.engine.replicas.affinity import affinity
from opsin.engine.replicas.agreement import check_same
from opsin.engine.replicas.breaker import Breaker
from opsin.engine.replicas.config import RoutingConfig
from opsin.engine.replicas.replica import Replica
from opsin.engine.replicas.routing import Load, choose
from opsin.telemetry.logs import fields

logger = logging.getLogger(__name__)

_REJOIN_S = 2.0
"""Between two attempts to start a replica that was not there, beyond its engine's own patience."""

_TELL_S = 1.0
"""Between two looks at what the log has to be told."""

_RELIEF_S = 0.05
"""Between two looks of a replica that leaves at whether another one is there."""

_WORST_FIRST = (PurgeOutcome.UNREACHABLE, PurgeOutcome.ERASED, PurgeOutcome.NONE)


class ReplicatedEngine:
    """See ``engine.api.Engine``. One replica alone behaves as its engine does."""

    def __init__(
        self,
        make: Callable[[str], Engine],
        names: Sequence[str],
        config: RoutingConfig,
        *,
        draining: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._config = config
        self._clock = clock
        self._replicas: dict[str, Replica] = {}
        self._leaving: set[Replica] = set()
        self._running: dict[str, Replica] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._set(names, draining)
        self._capabilities = next(iter(self._replicas.values())).engine.capabilities()
        self._agreed: Capabilities | None = None  # of the first that was there

    async def start(self) -> None:
        """Returns once one replica is there; the others join as they come.

        Raises:
            ConfigError, EngineError: the first failure, when the first attempt of every one has failed.
        """
        self._do(self._keep_telling())
        attempts = {self._begin_to_join(replica) for replica in self._replicas.values()}
        failures: list[OpsinError] = []
        while attempts:
            done, attempts = await asyncio.wait(attempts, return_when=asyncio.FIRST_COMPLETED)
            outcomes = [attempt.result() for attempt in done]
            if None in outcomes:
                return
            failures += [outcome for outcome in outcomes if outcome is not None]
        raise failures[0]

    async def close(self) -> None:
        """Ends all replicas and what runs there."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await together(replica.engine.close() for replica in self._all())

    def capabilities(self) -> Capabilities:
        """Those of the first replica that was there."""
        return self._capabilities

    def unready_reason(self) -> str | None:
        """None while one replica can be asked."""
        if any(replica.is_there() for replica in self._all()):
            return None
        down = [reason for one in self._replicas.values() if (reason := one.unready_reason()) is not None]
        reason = next(iter(down), "it drains")
        return reason if len(self._replicas) == 1 else f"none of {len(self._replicas)} replicas is ready: {reason}"

    def change(self, make: Callable[[str], Engine], names: Iterable[str], draining: Collection[str]) -> None:
        """From now on these are the replicas; ``draining`` are those among them that get no new request.

        One that is gone gets no new request as soon as one that stays is there, and is closed when it has ended those
        that run there.
        """
        self._make = make
        before = set(self._replicas.values())
        self._set(names, draining)
        for replica in before - set(self._replicas.values()):
            self._leaving.add(replica)
            self._do(self._leave(replica))
        for replica in set(self._replicas.values()) - before:
            self._begin_to_join(replica)

    async def reserve(self, request_id: str, keys: Sequence[str]) -> Reservation:
        """Leases what any replica has: whichever gets the request heeds its own leases alone."""
        reserved = await together(replica.engine.reserve(request_id, keys) for replica in self._present())
        leased = frozenset[str]().union(*(one.leased for one in reserved))
        return Reservation(leased=leased, missing=frozenset(keys) - leased)

    async def release(self, request_id: str) -> None:
        """See Engine."""
        await together(replica.engine.release(request_id) for replica in self._all())

    async def submit(self, request: GenerationRequest) -> AsyncGenerator[StreamEvent, None]:
        """As the engine of the replica that gets it."""
        load = Load(1, sum(picture.image_tokens or 0 for picture in request.pictures))
        key = affinity(request) if self._config.sticky and len(self._replicas) > 1 else None
        asked: list[Replica] = []
        replica = self._choose(load, key, asked)
        if replica is None:
            raise EngineError(self.unready_reason() or "no replica is ready", retry_after_s=2)
        while True:
            self._running[request.id] = replica
            logger.debug("%s", fields(request_id=request.id, replica=replica.name))
            has_begun = False
            try:
                async with aclosing(replica.submit(request, load)) as events:
                    async for event in events:
                        has_begun = True
                        yield event
                return
            except OpsinError as error:
                asked.append(replica)
                may_move = error.not_begun and not has_begun and len(asked) <= self._config.max_retries
                another = self._choose(load, key, asked) if may_move else None
                if another is None:
                    raise
                logger.info("%s", fields(request_id=request.id, replica=replica.name, refused=error.code))
                replica.retries += 1
                replica = another
            finally:
                self._running.pop(request.id, None)

    async def cancel(self, request_id: str) -> None:
        """See Engine."""
        replica = self._running.get(request_id)
        if replica is not None:
            await replica.engine.cancel(request_id)

    async def purge(self, scope: str, origin: str | None) -> PurgeReport:
        """Everywhere; of each tier the worst outcome."""
        reports = await together(replica.engine.purge(scope, origin) for replica in self._all())
        outcomes = {(tier, outcome) for report in reports for tier, outcome in report.tiers.items()}
        tiers = {tier for tier, _ in outcomes}
        return PurgeReport({tier: next(one for one in _WORST_FIRST if (tier, one) in outcomes) for tier in tiers})

    async def stats(self) -> EngineStats:
        """Sums, and each replica by itself."""
        several = await together(replica.engine.stats() for replica in self._all())
        by_name = {replica.name: replica.stats() for replica in self._all()}
        return replace(EngineStats.total(several), replicas=tuple(by_name.values()))

    def _choose(self, load: Load, key: bytes | None, asked: Sequence[Replica]) -> Replica | None:
        """One that was not asked yet; None when there is none. An ejected one is passed over unless all of them are:
        ejection is advice on where to go, and refuses nobody."""
        staying = [one for one in self._replicas.values() if one.is_there()]
        there = [one for one in staying or self._leaving if one not in asked and one.is_there()]
        taking = {one.name: one for one in there if one.admits()} or {one.name: one for one in there}
        if not taking:
            return None
        loads = {one.name: one.load for one in taking.values()}
        return taking[choose(loads, load, key, self._config.load_bound)]

    def _set(self, names: Iterable[str], draining: Collection[str]) -> None:
        self._replicas = {name: self._replicas.get(name) or self._made(name) for name in names}
        for replica in self._replicas.values():
            replica.draining = replica.name in draining

    def _made(self, name: str) -> Replica:
        return Replica(name, partial(self._make, name), Breaker(self._config, self._clock))

    def _all(self) -> Iterable[Replica]:
        """Those that leave come first, so that in a mapping by name one that came back wins."""
        return (*self._leaving, *self._replicas.values())

    def _present(self) -> Iterable[Replica]:
        return [replica for replica in self._replicas.values() if replica.unready_reason() is None]

    def _begin_to_join(self, replica: Replica) -> asyncio.Future[OpsinError | None]:
        """Goes on until it has joined; the future is the outcome of the first attempt."""
        first: asyncio.Future[OpsinError | None] = asyncio.get_running_loop().create_future()
        self._do(self._join(replica, first)).add_done_callback(lambda task: _pass_on(task, first))
        return first

    async def _join(self, replica: Replica, first: asyncio.Future[OpsinError | None]) -> None:
        told = ""
        while self._is_wanted(replica):
            try:
                await replica.engine.start()
                self._agree(replica.engine.capabilities())
                if self._is_wanted(replica):
                    replica.joined()
                    replica.tell()
                    _tell(first, None)
                    return
            except OpsinError as error:
                replica.not_joined(error.message)
                if error.message != told and len(self._replicas) > 1:
                    told = error.message
                    logger.warning("%s", fields(replica=replica.name, state=replica.state, reason=told))
                _tell(first, error)
            await asyncio.sleep(_REJOIN_S)
            await replica.remake()
        await replica.engine.close()

    def _is_wanted(self, replica: Replica) -> bool:
        return self._replicas.get(replica.name) is replica

    def _agree(self, capabilities: Capabilities) -> None:
        """The first replica that is there says what all serve. Raises ConfigError for one that differs."""
        if self._agreed is None:
            self._agreed = self._capabilities = capabilities
        check_same(capabilities, self._agreed)

    async def _leave(self, replica: Replica) -> None:
        while replica.is_there() and not self._is_relieved():  # noqa: ASYNC110 - the contract has no event for it
            await asyncio.sleep(_RELIEF_S)
        replica.draining = True
        await replica.idle.wait()
        await replica.engine.close()
        self._leaving.discard(replica)
        logger.info("%s", fields(replica=replica.name, state="gone"))

    async def _keep_telling(self) -> None:
        while True:
            await asyncio.sleep(_TELL_S)
            for replica in self._all():
                replica.tell()

    def _is_relieved(self) -> bool:
        """Whether what leaves may go: somebody else is there, or is not to be."""
        staying = [one for one in self._replicas.values() if not one.draining]
        return not staying or any(one.is_there() for one in staying)

    def _do(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _pass_on(task: asyncio.Task[None], first: asyncio.Future[OpsinError | None]) -> None:
    """A task that ends before it has told anything was cancelled, or has a bug: nobody waits for it in vain."""
    if first.done():
        return
    if task.cancelled():
        first.cancel()
    elif (error := task.exception()) is not None:
        first.set_exception(error)


def _tell(first: asyncio.Future[OpsinError | None], outcome: OpsinError | None) -> None:
    if not first.done():
        first.set_result(outcome)
