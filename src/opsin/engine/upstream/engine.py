"""An engine that is somebody else's OpenAI-compatible server: vLLM, SGLang, TensorRT-LLM, llama-server, an API.

Always streams, always asks for usage. The upstream applies its own template; how it differs from others is a row of
:mod:`opsin.engine.upstream.dialect`. Of its stages it tells some or none, and what is left of its time is shown as one.
Knows no URL of a picture, and keeps of a request the names of its pictures at most.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import aiohttp

from opsin.core.errors import Code, ConfigError, EngineError, OpsinError
from opsin.core.sse import MAX_EVENT_BYTES, EventTooLarge, SseParser
from opsin.engine.api import (
    Capabilities,
    EngineStats,
    Finished,
    GenerationRequest,
    InputKind,
    PurgeOutcome,
    PurgeReport,
    Remote,
    Reservation,
    StreamEvent,
)
from opsin.engine.upstream.body import Addressee, encode_body
from opsin.engine.upstream.call import Call
from opsin.engine.upstream.config import UpstreamConfig
from opsin.engine.upstream.dialect import Dialect, UpstreamKind, dialect_of
from opsin.engine.upstream.failures import PictureGone, protocol_error
from opsin.engine.upstream.known import KnownPictures
from opsin.engine.upstream.load import fetch_waiting
from opsin.engine.upstream.probe import ServedModel, choose_model, fetch_models, wait_for_models
from opsin.engine.upstream.reply import Reply
from opsin.engine.upstream.session import open_session
from opsin.telemetry.logs import fields

logger = logging.getLogger(__name__)

_SEVERAL = 2
_MAY_BE_NAMES = (Code.UPSTREAM_REFUSED, Code.UPSTREAM_UNAVAILABLE, Code.UPSTREAM_ERROR)
"""How vLLM fails where it cannot do with a name alone: not all models' processors can, and its two processes drift."""
_UNKNOWN = "none that opsin knows; if it is vLLM behind something else, say --upstream-kind vllm"


class UpstreamEngine:
    """Implements :class:`opsin.engine.api.Engine`."""

    def __init__(self, config: UpstreamConfig) -> None:
        self._config = config
        self._session: aiohttp.ClientSession | None = None
        self._model: ServedModel | None = None
        self._dialect = dialect_of(config.kind, None)
        self._known = KnownPictures()
        self._leases: dict[str, frozenset[str]] = {}
        self._scopes: set[str] = set()  # one of them, or two: then there are several
        self._waiting = 0
        self._watch: asyncio.Task[None] | None = None
        self._calls: dict[str, Call] = {}
        self._unready: str | None = "the upstream was not asked yet"

    async def start(self) -> None:
        """Waits for ``/v1/models``.

        Raises:
            ConfigError: key, url or model name are wrong, or ``exclusive`` asks what this engine cannot do.
            EngineError: it was not there in time.
        """
        self._model = choose_model(await wait_for_models(self._config), self._config.model)
        self._dialect = dialect_of(self._config.kind, self._model.owned_by)
        _check_exclusive(self._config, self._dialect)
        logger.info("%s", fields(upstream=self._dialect.kind, owned_by=self._model.owned_by))
        self._session = open_session(self._config)
        self._unready = None
        self._watch = asyncio.create_task(self._watch_health())

    async def close(self) -> None:
        """Stops every request and closes all connections."""
        self._unready = "the engine is closed"
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.wait([watch])
        for call in self._calls.values():
            call.cancel()
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def capabilities(self) -> Capabilities:
        """``max_model_len`` is what the upstream says, None when it does not."""
        return Capabilities(
            input=InputKind.MESSAGES,
            max_model_len=self._model.max_model_len if self._model else None,
            model_name=self._model.name if self._model else None,
            model_root=self._model.root if self._model else None,
            max_num_seqs=None,
            stages=frozenset(),
            reports_cache=self._config.exclusive,
            reports_kv=False,
            relays=True,
            picture_formats=self._dialect.formats,
            ignores_orientation=self._dialect.ignores_orientation,
        )

    def unready_reason(self) -> str | None:
        """As of the last probe (every ``health_interval_s``), or of a request that could not connect since."""
        return self._unready

    async def reserve(self, request_id: str, keys: Sequence[str]) -> Reservation:
        """What an upstream caches it does not tell, but one that nobody else asks has what it was sent."""
        leased = self._known.among(keys) if self._config.exclusive else frozenset[str]()
        if leased:
            self._leases[request_id] = leased
        return Reservation(leased=leased, missing=frozenset(keys) - leased)

    async def release(self, request_id: str) -> None:
        """See Engine."""
        self._leases.pop(request_id, None)

    async def submit(self, request: GenerationRequest) -> AsyncGenerator[StreamEvent, None]:
        """Streams one answer. Raises as listed in :mod:`opsin.engine.upstream.failures`."""
        if self._session is None or self._model is None:
            raise EngineError("the upstream engine is not started or is closed")
        began = time.monotonic()
        call, reply, parser = Call(self._session), Reply(self._dialect), SseParser()
        self._calls[request.id] = call
        try:
            num_by_name = await self._ask(call, request, self._addressee(request.scope, self._model))
            while not reply.done and (read := await call.read()):
                for data in parser.feed(read):
                    delta = None if reply.done else reply.take(data)
                    if delta is not None:
                        yield delta
            yield _with_rest(reply.finish(), self._dialect, time.monotonic() - began, num_by_name)
        except EventTooLarge:
            raise protocol_error(f"one event of over {MAX_EVENT_BYTES} bytes") from None
        except OpsinError as error:
            if error.code in _MAY_BE_NAMES:
                self._known.missed(*self._leases.get(request.id, ()))
            raise
        finally:
            self._calls.pop(request.id, None)
            await call.close(finished=reply.done)

    async def cancel(self, request_id: str) -> None:
        """Closes the request's connection, which is how every engine learns that nobody waits any more."""
        call = self._calls.get(request_id)
        if call is not None:
            call.cancel()

    async def purge(self, scope: str, origin: str | None) -> PurgeReport:
        """The upstream's caches cannot be erased from here; nobody will ask for what is there by these names."""
        self._known.clear()
        return PurgeReport({"upstream": PurgeOutcome.UNREACHABLE})

    async def stats(self) -> EngineStats:
        """Requests sent and not ended. So many of them wait as the upstream said at the last look, or none."""
        waiting = min(self._waiting, len(self._calls))
        return EngineStats(running=len(self._calls) - waiting, waiting=waiting)

    def _addressee(self, scope: str, model: ServedModel) -> Addressee:
        if len(self._scopes) < _SEVERAL:
            self._scopes.add(scope)
        return Addressee(model=model.name, dialect=self._dialect, is_shared=len(self._scopes) >= _SEVERAL)

    async def _ask(self, call: Call, request: GenerationRequest, to: Addressee) -> int:
        """Posts, and once more with all bytes where a picture is gone, which is found out before anything runs.

        Returns how many pictures went by name alone.
        """
        leased = self._leases.get(request.id, frozenset())
        try:
            await self._post(call, encode_body(request, to, leased))
        except PictureGone as gone:
            if not leased or gone.index >= len(request.pictures):
                raise
            self._known.missed(request.pictures[gone.index].key)
            leased = frozenset[str]()
            await self._post(call, encode_body(request, to))
        if self._config.exclusive:
            self._known.found(leased)
            self._known.sent(picture.key for picture in request.pictures if picture.key not in leased)
        return sum(picture.key in leased for picture in request.pictures)

    async def _post(self, call: Call, body: bytes) -> None:
        try:
            await call.post(f"{self._config.url}/chat/completions", body)
        except EngineError as error:
            if not call.answered and error.code is Code.UPSTREAM_UNAVAILABLE:
                self._unready = error.message
            raise

    async def _watch_health(self) -> None:
        while True:
            await asyncio.sleep(self._config.health_interval_s)
            try:
                await fetch_models(self._config)
                self._unready = None
            except OpsinError as error:
                self._unready = error.message
                self._known.clear()  # whoever comes back may have started anew
            gauge = self._dialect.waiting
            self._waiting = await fetch_waiting(self._config, gauge) if gauge and self._unready is None else 0


def _check_exclusive(config: UpstreamConfig, dialect: Dialect) -> None:
    if config.exclusive and not dialect.names_pictures:
        raise ConfigError(
            f"--upstream-exclusive needs an engine that takes names for pictures, which is vLLM; this one is "
            f"{_UNKNOWN if dialect.kind is UpstreamKind.AUTO else dialect.kind}"
        )


def _with_rest(finished: Finished, dialect: Dialect, took_s: float, num_by_name: int) -> Finished:
    """With what no stage of the upstream's accounts for. Stages that took longer than all of it are not believed."""
    told_s = sum(finished.stages_s.values())
    if told_s > took_s:
        finished, told_s = replace(finished, stages_s={}), 0.0
    return replace(finished, remote=Remote(source=dialect.kind, rest_s=took_s - told_s, num_by_name=num_by_name))
