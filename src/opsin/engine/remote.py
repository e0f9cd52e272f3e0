"""What every engine does alike that runs elsewhere and answers one call per request: vLLM and its like, Triton, an API.

One loop reads an answer, one registry stops it, one watch tells whether the other side is there. What an engine adds is
an :class:`Answer`: how its wire sends, reads and ends one request. Knows no wire.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from opsin.core.errors import Code, EngineError
from opsin.engine.api import (
    Capabilities,
    Delta,
    EngineStats,
    Finished,
    GenerationRequest,
    PurgeOutcome,
    PurgeReport,
    Remote,
    Reservation,
    StreamEvent,
)


class Answer(Protocol):
    """One request at a remote engine, not yet sent. Whoever got it ends it with ``close``."""

    @property
    def answered(self) -> bool:
        """Whether anything has come back, were it only the end of a connection that somebody had taken."""
        ...

    def deltas(self) -> AsyncGenerator[Delta, None]:
        """Sends, then reads to the end. Raises OpsinError."""
        ...

    def finish(self, took_s: float) -> Finished:
        """After the last delta. Raises EngineError where the engine did not say that the answer is whole."""
        ...

    def cancel(self) -> None:
        """Wakes whoever waits in ``deltas`` with an error, and tells the engine. Idempotent."""
        ...

    async def close(self) -> None:
        """Frees the connection."""
        ...


AnswerT = TypeVar("AnswerT", bound=Answer)


class RemoteEngine(ABC, Generic[AnswerT]):
    """Implements :class:`opsin.engine.api.Engine` but for ``start`` and ``capabilities``."""

    def __init__(self) -> None:
        self._answers: dict[str, AnswerT] = {}
        self._unready: str | None = "the engine is not started"
        self._watch: asyncio.Task[None] | None = None

    @abstractmethod
    async def start(self) -> None:
        """See Engine."""

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """See Engine."""

    @abstractmethod
    def _ask(self, request: GenerationRequest) -> AnswerT:
        """Sends nothing yet. Raises EngineError when not started or closed, InvalidRequest for what cannot be asked."""

    @abstractmethod
    async def _disconnect(self) -> None:
        """Frees what ``start`` opened, if it did; no request runs any more."""

    async def _look(self) -> str | None:
        """Why the other side cannot be asked now, None when it can. Asked only of who called ``_watch_every``."""
        return None

    async def close(self) -> None:
        """Stops every request, then closes all connections."""
        self._unready = "the engine is closed"
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.wait([watch])
        for answer in self._answers.values():
            answer.cancel()
        await self._disconnect()

    def unready_reason(self) -> str | None:
        """As of the last look, or of a request that found nobody since."""
        return self._unready

    async def reserve(self, request_id: str, keys: Sequence[str]) -> Reservation:
        """What a remote engine caches it does not tell: every key is missing."""
        return Reservation(leased=frozenset(), missing=frozenset(keys))

    async def release(self, request_id: str) -> None:
        """Nothing was leased."""

    async def submit(self, request: GenerationRequest) -> AsyncGenerator[StreamEvent, None]:
        """Streams one answer. Raises as the engine's own ``failures`` list them."""
        began = time.monotonic()
        answer = self._ask(request)
        self._answers[request.id] = answer
        try:
            async with aclosing(answer.deltas()) as deltas:
                async for delta in deltas:
                    yield delta
            yield answer.finish(time.monotonic() - began)
        except EngineError as error:
            if self._watch is not None and not answer.answered and error.code is Code.UPSTREAM_UNAVAILABLE:
                self._unready = error.message  # until the next look
            raise
        finally:
            self._answers.pop(request.id, None)
            await answer.close()

    async def cancel(self, request_id: str) -> None:
        """Ends the request's call, which is how every engine learns that nobody waits any more."""
        answer = self._answers.get(request_id)
        if answer is not None:
            answer.cancel()

    async def purge(self, scope: str, origin: str | None) -> PurgeReport:
        """What the other side keeps cannot be erased from here."""
        return PurgeReport({"upstream": PurgeOutcome.UNREACHABLE})

    async def stats(self) -> EngineStats:
        """Requests sent and not ended."""
        return EngineStats(running=len(self._answers), waiting=0)

    def _watch_every(self, interval_s: float) -> None:
        """The other side is there now; looks again and again until ``close``."""
        self._unready = None
        self._watch = asyncio.create_task(self._keep_looking(interval_s))

    async def _keep_looking(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            self._unready = await self._look()


def with_rest(finished: Finished, source: str, took_s: float, num_by_name: int = 0) -> Finished:
    """With what no stage of the engine's accounts for. Stages that took longer than all of it are not believed."""
    told_s = sum(finished.stages_s.values())
    if told_s > took_s:
        finished, told_s = replace(finished, stages_s={}), 0.0
    return replace(finished, remote=Remote(source=source, rest_s=took_s - told_s, num_by_name=num_by_name))
