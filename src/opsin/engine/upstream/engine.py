"""An engine that is somebody else's OpenAI-compatible server: vLLM, SGLang, TensorRT-LLM, llama-server, an API.

Always streams, always asks for usage. The upstream applies its own template and hides its stages, unless it is an opsin
itself, so the gateway shows the whole wait as what is left. Knows no URL of a picture, and keeps nothing of a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import aiohttp

from opsin.core.errors import Code, EngineError, OpsinError
from opsin.core.sse import MAX_EVENT_BYTES, EventTooLarge, SseParser
from opsin.engine.api import (
    Capabilities,
    EngineStats,
    GenerationRequest,
    InputKind,
    PurgeOutcome,
    PurgeReport,
    Reservation,
    StreamEvent,
)
from opsin.engine.upstream.body import encode_body
from opsin.engine.upstream.call import Call
from opsin.engine.upstream.config import UpstreamConfig
from opsin.engine.upstream.failures import protocol_error
from opsin.engine.upstream.probe import ServedModel, choose_model, fetch_models, wait_for_models
from opsin.engine.upstream.reply import Reply
from opsin.engine.upstream.session import open_session


class UpstreamEngine:
    """Implements :class:`opsin.engine.api.Engine`."""

    def __init__(self, config: UpstreamConfig) -> None:
        self._config = config
        self._session: aiohttp.ClientSession | None = None
        self._model: ServedModel | None = None
        self._watch: asyncio.Task[None] | None = None
        self._calls: dict[str, Call] = {}
        self._unready: str | None = "the upstream was not asked yet"

    async def start(self) -> None:
        """Waits for ``/v1/models``. Raises ConfigError (key, url, model name) or EngineError (not there in time)."""
        self._model = choose_model(await wait_for_models(self._config), self._config.model)
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
            reports_cache=False,
            reports_kv=False,
            relays=True,
        )

    def unready_reason(self) -> str | None:
        """As of the last probe (every ``health_interval_s``), or of a request that could not connect since."""
        return self._unready

    async def reserve(self, request_id: str, keys: Sequence[str]) -> Reservation:
        """Whatever the upstream caches, it does not tell: every key is missing."""
        return Reservation(leased=frozenset(), missing=frozenset(keys))

    async def release(self, request_id: str) -> None:
        """Nothing was leased."""

    async def submit(self, request: GenerationRequest) -> AsyncGenerator[StreamEvent, None]:
        """Streams one answer. Raises as listed in :mod:`opsin.engine.upstream.failures`."""
        if self._session is None or self._model is None:
            raise EngineError("the upstream engine is not started or is closed")
        call, reply, parser = Call(self._session), Reply(), SseParser()
        self._calls[request.id] = call
        try:
            await self._post(call, encode_body(request, self._model.name))
            while not reply.done and (read := await call.read()):
                for data in parser.feed(read):
                    delta = None if reply.done else reply.take(data)
                    if delta is not None:
                        yield delta
            yield reply.finish()
        except EventTooLarge:
            raise protocol_error(f"one event of over {MAX_EVENT_BYTES} bytes") from None
        finally:
            self._calls.pop(request.id, None)
            await call.close(finished=reply.done)

    async def cancel(self, request_id: str) -> None:
        """Closes the request's connection, which is how every engine learns that nobody waits any more."""
        call = self._calls.get(request_id)
        if call is not None:
            call.cancel()

    async def purge(self, scope: str, key: str | None) -> PurgeReport:
        """The upstream's caches cannot be erased from here."""
        return PurgeReport({"upstream": PurgeOutcome.UNREACHABLE})

    async def stats(self) -> EngineStats:
        """Requests sent and not ended; which of them the upstream lets wait, it does not tell."""
        return EngineStats(running=len(self._calls), waiting=0)

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
