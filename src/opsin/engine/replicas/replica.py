"""One of several replicas: its engine, what it has not finished, whether it may be asked. Knows no other replica."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

from opsin.core.errors import Code, EngineError, EngineOutOfMemory, InvalidRequest, OpsinError
from opsin.engine.api import Engine, Finished, GenerationRequest, ReplicaState, ReplicaStats, StreamEvent
from opsin.engine.replicas.breaker import Breaker
from opsin.engine.replicas.routing import Load
from opsin.telemetry.logs import fields

logger = logging.getLogger(__name__)

_BAD = (ReplicaState.DOWN, ReplicaState.EJECTED)


class Replica:
    """``make`` makes its engine, once for each attempt to start it."""

    def __init__(self, name: str, make: Callable[[], Engine], breaker: Breaker) -> None:
        self.name = name
        self.engine = make()
        self.draining = False
        self.load = Load()
        self.retries = 0  # requests that it certainly did not begin, and that went on to another one
        self.idle = asyncio.Event()
        self.idle.set()
        self._make = make
        self._breaker = breaker
        self._joined = False
        self._reason = "it has not been started"
        self._told = ReplicaState.DOWN

    @property
    def is_ejected(self) -> bool:
        """Whether it failed too often, lately."""
        return self._breaker.is_open

    @property
    def state(self) -> ReplicaState:
        """For people and metrics."""
        if self.draining:
            return ReplicaState.DRAINING
        if self.unready_reason() is not None:
            return ReplicaState.DOWN
        return ReplicaState.EJECTED if self.is_ejected else ReplicaState.READY

    def unready_reason(self) -> str | None:
        """None when it answers."""
        return self.engine.unready_reason() if self._joined else self._reason

    def is_there(self) -> bool:
        """Whether requests may be sent there at all."""
        return not self.draining and self.unready_reason() is None

    def admits(self) -> bool:
        """Whether it may be asked now, which an ejected one may for a trial."""
        return self.is_there() and self._breaker.admits()

    def joined(self) -> None:
        """It has been started, and serves the model of the others."""
        self._joined = True

    def not_joined(self, reason: str) -> None:
        """It could not be started, or serves something else."""
        self._reason = reason

    async def remake(self) -> None:
        """Ends its engine and makes another one, to be started."""
        await self.engine.close()
        self.engine = self._make()

    async def submit(self, request: GenerationRequest, load: Load) -> AsyncGenerator[StreamEvent, None]:
        """As the engine's. What the request weighs is outstanding until it ends, and its end is judged."""
        self.load += load
        self.idle.clear()
        self._breaker.begun()
        judge = self._breaker.abandoned
        try:
            async with aclosing(self.engine.submit(request)) as events:
                async for event in events:
                    if isinstance(event, Finished):
                        judge = self._breaker.succeeded
                        event = replace(event, replica=self.name)
                    yield event
        except OpsinError as error:
            error.replica = self.name
            judge = self._judgement(error)
            raise
        finally:
            self._end(load, judge)

    def stats(self) -> ReplicaStats:
        """A snapshot."""
        return ReplicaStats(
            name=self.name,
            state=self.state,
            requests=self.load.requests,
            visual_tokens=self.load.visual_tokens,
            ejections=self._breaker.ejections,
            retries=self.retries,
        )

    def tell(self) -> None:
        """Logs the state if it is another one than last time."""
        state, reason = self.state, self.unready_reason()
        if state is not self._told:
            self._told = state
            level = logging.WARNING if state in _BAD else logging.INFO
            logger.log(level, "%s", fields(replica=self.name, state=state, reason=reason))

    def _end(self, load: Load, judge: Callable[[], None]) -> None:
        self.load -= load
        if not self.load.requests:
            self.idle.set()
        judge()
        self.tell()

    def _judgement(self, error: OpsinError) -> Callable[[], None]:
        """A refusal of the request shows that the replica works; want of room says nothing about it."""
        match error:
            case InvalidRequest():
                return self._breaker.succeeded
            case EngineError() if not isinstance(error, EngineOutOfMemory) and error.code is not Code.REQUEST_CANCELLED:
                return self._breaker.failed
            case _:
                return self._breaker.abandoned
