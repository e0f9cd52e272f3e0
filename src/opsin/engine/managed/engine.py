"""An engine that opsin starts, watches and ends: the Engine contract over a program and the upstream that it is.

One start is a life: a process, and an :class:`UpstreamEngine` at its port. When the process ends, the requests in
flight fail and are never replayed, and after a pause the next life begins, until the crash history says stop. Knows no
flag.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from opsin.core.errors import Code, EngineError, OpsinError
from opsin.engine.api import (
    Capabilities,
    EngineStats,
    GenerationRequest,
    InputKind,
    PurgeReport,
    Reservation,
    StreamEvent,
)
from opsin.engine.crashes import CrashHistory, restarted
from opsin.engine.managed.canary import try_out
from opsin.engine.managed.config import ManagedOptions
from opsin.engine.managed.launch import Launch
from opsin.engine.managed.process import EngineProcess
from opsin.engine.upstream.config import UpstreamConfig
from opsin.engine.upstream.engine import UpstreamEngine

logger = logging.getLogger(__name__)

_SEEN_TO_END_S = {
    Code.UPSTREAM_TRUNCATED: 5.0,
    Code.UPSTREAM_UNAVAILABLE: 5.0,
    Code.UPSTREAM_ERROR: 5.0,
    Code.REQUEST_CANCELLED: 0.0,  # by its life, which ends after its process
}
"""How a request sees the end of the program, and how soon after that it is seen to end, with all that it had started.

vLLM on a busy machine: 1.5 s after its connections broke, 2 s after it said that its engine's process died.
"""


@dataclass(frozen=True, slots=True)
class _Life:
    process: EngineProcess
    upstream: UpstreamEngine


class ManagedEngine:
    """See ``engine.api.Engine``. ``next_launch`` makes a start; one that ``sees`` has to answer a picture first."""

    def __init__(self, name: str, next_launch: Callable[[], Launch], options: ManagedOptions, *, sees: bool) -> None:
        self._name = name
        self._next_launch = next_launch
        self._options = options
        self._sees = sees
        self._life: _Life | None = None
        self._unready_reason: str | None = f"{name} has not been started"
        self._capabilities = Capabilities(
            input=InputKind.MESSAGES,
            max_model_len=None,
            max_num_seqs=None,
            stages=frozenset(),
            reports_cache=False,
            reports_kv=False,
            relays=True,
            device=name,
        )
        self._supervisor: asyncio.Task[None] | None = None
        self._crashes = CrashHistory()
        self._closed = False

    async def start(self) -> None:
        """Returns once the program has answered. Raises ConfigError or EngineError; a first start is not repeated."""
        life = await self._launch()
        self._supervisor = asyncio.create_task(self._supervise(life), name="managed-engine-supervisor")

    async def close(self) -> None:
        """Ends running requests, then the program: SIGTERM, and SIGKILL after ``stop_timeout_s``."""
        self._closed = True
        self._unready_reason = "the engine is closed"
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.cancel()
            await asyncio.wait((supervisor,))
        life, self._life = self._life, None
        if life is not None:
            await _end(life)

    def capabilities(self) -> Capabilities:
        """As of the last start that went well; ``load_time_s`` is from the start to the last canary."""
        return self._capabilities

    def unready_reason(self) -> str | None:
        """Of the program while it starts or is down, else of the upstream that it is."""
        return self._life.upstream.unready_reason() if self._life else self._unready_reason

    async def reserve(self, request_id: str, keys: Sequence[str]) -> Reservation:
        """See Engine."""
        return await self._running().upstream.reserve(request_id, keys)

    async def release(self, request_id: str) -> None:
        """See Engine."""
        if self._life is not None:
            await self._life.upstream.release(request_id)

    async def submit(self, request: GenerationRequest) -> AsyncGenerator[StreamEvent, None]:
        """As UpstreamEngine; raises EngineError ``engine_died`` when the program ended while it ran the request."""
        life = self._running()
        try:
            async with aclosing(life.upstream.submit(request)) as events:
                async for event in events:
                    yield event
        except EngineError as error:
            if self._closed:
                raise EngineError("the server is shutting down", code=Code.ENGINE_CLOSED) from None
            if error.code in _SEEN_TO_END_S and await life.process.ended_within(_SEEN_TO_END_S[error.code]):
                raise EngineError(f"{self._name} ended while it ran this request", code=Code.ENGINE_DIED) from None
            raise

    async def cancel(self, request_id: str) -> None:
        """See Engine."""
        if self._life is not None:
            await self._life.upstream.cancel(request_id)

    async def purge(self, scope: str, origin: str | None) -> PurgeReport:
        """See Engine."""
        return await self._running().upstream.purge(scope, origin)

    async def stats(self) -> EngineStats:
        """Requests of the upstream, memory of the program."""
        if self._life is None:
            return EngineStats(running=0, waiting=0)
        stats = await self._life.upstream.stats()
        return replace(stats, process_memory_bytes=self._life.process.memory_bytes())

    async def _launch(self) -> _Life:
        """Starts the program and asks it; it is ours to end if that fails or is cancelled."""
        began = time.monotonic()
        self._waits_for("its program")
        launch = self._next_launch()
        process = await EngineProcess.spawn(launch, self._options.stop_timeout_s, self._tell)
        life = _Life(process, UpstreamEngine(_upstream(launch, self._options), self._name))
        try:
            await self._within_time(_unless_ended(process, self._try_out(life.upstream), self._name))
        except BaseException as error:
            await _end(life)
            if isinstance(error, OpsinError):
                self._unready_reason = f"{self._name} could not be started: {error.message}"
            raise
        self._capabilities = replace(
            life.upstream.capabilities(), device=self._name, load_time_s=time.monotonic() - began
        )
        self._life = life
        return life

    async def _try_out(self, upstream: UpstreamEngine) -> None:
        self._waits_for("its list of models")
        await upstream.start()
        async for what in try_out(upstream, sees=self._sees):
            self._waits_for(what)

    async def _within_time(self, work: Coroutine[Any, Any, None]) -> None:
        limit_s = self._options.start_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await work
        except TimeoutError:
            raise EngineError(
                f"{self._unready_reason}, and it took more than managed.start_timeout_s = {limit_s:g} s",
                code=Code.ENGINE_START_TIMEOUT,
            ) from None

    def _waits_for(self, what: str) -> None:
        self._unready_reason = f"{self._name} is starting: waiting for {what}"
        logger.info("%s", self._unready_reason)

    def _tell(self, line: str) -> None:
        logger.info("%s | %s", self._name, line)

    async def _supervise(self, life: _Life) -> None:
        """Waits for the program to end, then starts the next one, until the crash history says stop."""
        live: _Life | None = life
        while live is not None:
            status = await live.process.wait()
            logger.error("%s ended with status %d", self._name, status)
            self._life = None
            self._unready_reason = f"{self._name} ended and is being restarted"
            await _end(live)
            live = await restarted(self._crashes, self._launch, self._give_up)

    def _give_up(self, how_often: str) -> None:
        self._unready_reason = f"{self._name} ended {how_often}"
        logger.error(self._unready_reason)

    def _running(self) -> _Life:
        if self._life is None or self._closed:
            raise EngineError(self._unready_reason or "the engine is not ready", retry_after_s=1)
        return self._life


async def _end(life: _Life) -> None:
    await life.upstream.close()
    await life.process.stop()


async def _unless_ended(process: EngineProcess, work: Coroutine[Any, Any, None], name: str) -> None:
    """Does ``work`` as long as the program runs. Raises EngineError when it ends first."""
    working, ending = asyncio.create_task(work), asyncio.create_task(process.wait())
    try:
        await asyncio.wait((working, ending), return_when=asyncio.FIRST_COMPLETED)
        if ending.done():
            raise EngineError(
                f"{name} ended with status {ending.result()} before it answered; the log has its last lines",
                code=Code.ENGINE_DIED,
            )
        working.result()
    finally:
        working.cancel()
        ending.cancel()
        await asyncio.wait((working, ending))


def _upstream(launch: Launch, options: ManagedOptions) -> UpstreamConfig:
    return UpstreamConfig(url=launch.url, kind=launch.kind, api_key=launch.key, ready_timeout_s=options.start_timeout_s)
