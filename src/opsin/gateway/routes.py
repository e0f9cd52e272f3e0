"""The HTTP routes. Thin: read, call, frame."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from opsin import __version__
from opsin.cache.keys import Scopes
from opsin.core.errors import OpsinError
from opsin.engine.api import EngineStats
from opsin.gateway.admission import Admission, Place
from opsin.gateway.auth import Auth, Caller
from opsin.gateway.body import BodyLimits, read_body
from opsin.gateway.cache_header import HEADER as CACHE_HEADER
from opsin.gateway.cache_header import cache_header
from opsin.gateway.chat import AnswerEvent, Begun, Done, collect, count_outcome
from opsin.gateway.closing import Closing
from opsin.gateway.config import GatewayConfig
from opsin.gateway.count import Counted, to_wire
from opsin.gateway.deadline import HEADER as DEADLINE_HEADER
from opsin.gateway.deadline import Deadline
from opsin.gateway.docs import openapi, page
from opsin.gateway.erasing import Eraser
from opsin.gateway.errors import as_opsin_error, on_http_exception, on_opsin_error, to_response
from opsin.gateway.file_routes import file_routes
from opsin.gateway.intake import Intake, Taken
from opsin.gateway.memory import observe_memory
from opsin.gateway.rate_headers import rate_headers
from opsin.gateway.relay import Relay, Silence
from opsin.gateway.request_id import RequestIds
from opsin.gateway.served import ServedModels
from opsin.gateway.streaming import (
    EventStream,
    Outcome,
    server_timing,
    to_completion,
    to_events,
    warnings_header,
)
from opsin.gateway.told import engine_stage_samples, replica_samples
from opsin.gateway.uploads import Uploads
from opsin.protocol.response import encode
from opsin.telemetry.logs import fields
from opsin.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

OPEN_ROUTES = frozenset({"/health", "/ready"})
"""All others need a key."""

ADMIN_ROUTES = frozenset({"/metrics"})
"""What tells of all tenants."""

CLIENT_GONE = 499
"""Logged for a client that left."""

LAST_WORDS_S = 5.0
"""For a client to read the end of its stream; one that does not read holds its place, or the server, no longer."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """What the routes need."""

    models: ServedModels
    auth: Auth
    admission: Admission
    metrics: Metrics
    intake: Intake
    config: GatewayConfig
    scopes: Scopes
    eraser: Eraser
    uploads: Uploads
    closing: Closing = field(default_factory=Closing)


Handler = Callable[[Request], Awaitable[Response]]
ChatHandler = Callable[["_Exchange", ExitStack], Awaitable[Response]]
Answer = AsyncGenerator[AnswerEvent, None]
T = TypeVar("T")


def create_app(gateway: Gateway) -> Starlette:
    """The ASGI application; engine and workers are started by the caller."""
    http = _Http(gateway)
    handlers = {
        "/v1/models": http.models,
        "/v1/models/{model:path}": http.model,
        "/health": http.health,
        "/ready": http.ready,
        "/metrics": http.prometheus,
        "/version": http.version,
        "/docs": http.docs,
        "/openapi.json": http.openapi,
    }
    routes = [
        Route("/v1/chat/completions", http.chat_completions, methods=["POST"]),  # these two look at the key themselves
        Route("/v1/tokens", http.tokens, methods=["POST"]),
        *file_routes(gateway),
        *(Route(path, http.behind(path, handle)) for path, handle in handlers.items()),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(RequestIds)],
        exception_handlers={HTTPException: on_http_exception, Exception: on_opsin_error},
    )
    app.router.redirect_slashes = False
    return app


@dataclass(slots=True)
class _Exchange:
    """One chat request on its way through HTTP, to be answered or only to be counted. ``caller`` and ``place`` are None
    until it is admitted."""

    http: Request
    id: str
    deadline: Deadline
    caller: Caller | None = None
    place: Place | None = None


class _Http:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def behind(self, path: str, handler: Handler) -> Handler:
        """The same handler behind the key that its path needs."""
        if path in OPEN_ROUTES:
            return handler
        check = self._gateway.auth.admin if path in ADMIN_ROUTES else self._gateway.auth.caller

        async def checked(request: Request) -> Response:
            try:
                await check(request.headers.get("authorization"))
                return await handler(request)
            except OpsinError as error:
                return to_response(error)

        return checked

    async def chat_completions(self, request: Request) -> Response:
        return await self._exchanged(request, self._chat)

    async def tokens(self, request: Request) -> Response:
        return await self._exchanged(request, self._count)

    async def _exchanged(self, request: Request, handle: ChatHandler) -> Response:
        """One answer, whatever happens; ``held`` is given back with it."""
        gateway = self._gateway
        deadline = Deadline.after(gateway.config.request_timeout_s, gateway.closing)
        exchange = _Exchange(request, request.state.id, deadline)
        try:
            with ExitStack() as held:
                response = await handle(exchange, held)
        except ClientDisconnect:
            response = self._gone(exchange)
        except Exception as caught:  # the border of a route: every request gets exactly one answer
            error = as_opsin_error(caught, exchange.id)
            self._log(exchange, error)
            response = to_response(error)
        if exchange.place is not None:
            response.headers.update(rate_headers(exchange.place.readings))
        return response

    async def _chat(self, exchange: _Exchange, held: ExitStack) -> Response:
        gateway = self._gateway
        caller, place = await self._admitted(exchange, held)
        taken = await self._take(exchange)
        if taken is None:
            return self._gone(exchange)
        chat = taken.request
        served = gateway.models.named(chat.model)
        model = chat.model or served.names.default
        answer = served.chat.answer(chat, request_id=exchange.id, tenant=caller.tenant, lifted=taken.media, turns=place)
        if chat.stream:
            return await self._stream(answer, exchange, model, held, include_usage=chat.include_usage)
        return await self._complete(answer, exchange, model)

    async def _count(self, exchange: _Exchange, held: ExitStack) -> Response:
        gateway = self._gateway
        caller, _ = await self._admitted(exchange, held)
        taken = await self._take(exchange)
        if taken is None:
            return self._gone(exchange)
        served = gateway.models.named(taken.request.model)
        scope = gateway.scopes.of(caller.tenant)
        counting = exchange.deadline.within(served.counts.count(scope, taken.request, taken.media))
        counted = await _unless_gone(counting, exchange.http)
        if counted is None:
            return self._gone(exchange)
        self._log(exchange, None, counted)
        headers = warnings_header(counted.warnings)
        model = taken.request.model or served.names.default
        return Response(encode(to_wire(counted, model=model)), headers=headers, media_type="application/json")

    async def _admitted(self, exchange: _Exchange, held: ExitStack) -> tuple[Caller, Place]:
        """Who asks, and the place. From now on the exchange is under the client's own deadline."""
        headers = exchange.http.headers
        exchange.caller = caller = await self._gateway.auth.caller(headers.get("authorization"))
        exchange.place = place = held.enter_context(self._gateway.admission.admit(caller))
        await place.request()
        exchange.deadline = exchange.deadline.lowered(headers.get(DEADLINE_HEADER))
        return caller, place

    async def _take(self, exchange: _Exchange) -> Taken | None:
        """None when the client went away."""
        config, deadline = self._gateway.config, exchange.deadline
        limits = BodyLimits(config.max_body_bytes, "max_body_bytes", config.body_timeout_s, config.min_body_bytes_per_s)
        body = await deadline.within(read_body(exchange.http, limits))
        return await _unless_gone(deadline.within(self._gateway.intake.take(body)), exchange.http)

    async def _complete(self, answer: Answer, exchange: _Exchange, model: str) -> Response:
        collected = await _unless_gone(exchange.deadline.within(collect(answer)), exchange.http)
        if collected is None:
            return self._gone(exchange)
        done = collected.done
        self._log(exchange, None, done)
        completion = to_completion(collected, request_id=exchange.id, model=model)
        headers = {"server-timing": server_timing(done.timeline), **_told(exchange, done)}
        return Response(completion, headers=headers, media_type="application/json")

    async def _stream(
        self, answer: Answer, exchange: _Exchange, model: str, held: ExitStack, *, include_usage: bool
    ) -> Response:
        stream = Relay(answer, exchange.deadline, self._gateway.config.heartbeat_s)
        async with AsyncExitStack() as unless_begun:
            unless_begun.push_async_callback(stream.aclose)
            # The first event decides between an HTTP error and a stream, so it is awaited before any header is sent;
            # but not in silence for longer than proxies endure.
            opening = await _unless_gone(_opening(stream), exchange.http)
            if opening is None:
                return self._gone(exchange)
            unless_begun.pop_all()
        begun, first = opening
        headers = _told(exchange, begun) if begun else {}
        outcome = Outcome()
        kept = held.pop_all()

        async def end() -> None:
            await stream.aclose()
            kept.close()
            self._log(exchange, outcome.error, outcome.done)

        events = to_events(first, stream, outcome, request_id=exchange.id, model=model, include_usage=include_usage)
        return EventStream(events, end, exchange.deadline.later(LAST_WORDS_S), headers)

    def _gone(self, exchange: _Exchange) -> Response:
        """For a client that left; nobody receives it."""
        self._log(exchange, None)
        return Response(status_code=CLIENT_GONE)

    def _log(self, exchange: _Exchange, error: OpsinError | None, done: Done | Counted | None = None) -> None:
        gone = error is None and done is None
        if not gone:
            count_outcome(self._gateway.metrics, error)
        logger.info(
            "%s",
            fields(
                request_id=exchange.id,
                clients_id=exchange.http.state.clients_id,
                tenant=exchange.caller.tenant if exchange.caller and exchange.caller.key_id else None,
                key=exchange.caller.key_id if exchange.caller else None,
                status=CLIENT_GONE if gone else (error.status if error else 200),
                code=error.code if error else None,
                ms=round(exchange.deadline.elapsed_s * 1e3, 1),
                counted=isinstance(done, Counted) or None,
                image_tokens=(done.usage if isinstance(done, Done) else done).image_tokens if done else None,
                completion_tokens=done.usage.completion_tokens if isinstance(done, Done) else None,
            ),
        )

    async def models(self, _: Request) -> Response:
        return Response(encode(self._gateway.models.all()), media_type="application/json")

    async def model(self, request: Request) -> Response:
        model = self._gateway.models.get(str(request.path_params["model"]))
        return Response(encode(model), media_type="application/json")

    async def health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        """Ready while one model is, so that the others still get their requests."""
        reasons = self._gateway.models.unready_reasons()
        several = {"models": {name: reason or "ready" for name, reason in reasons.items()}} if len(reasons) > 1 else {}
        if None in reasons.values():
            return JSONResponse({"status": "ready", **several})
        reason = next(iter(reasons.values()))
        return JSONResponse({"status": "not ready", "reason": reason, **several}, status_code=503)

    async def prometheus(self, _: Request) -> Response:
        gateway = self._gateway
        by_model = await gateway.models.stats()
        stats = EngineStats.total(list(by_model.values()))
        gateway.metrics.running.set(stats.running)
        gateway.metrics.waiting.set(stats.waiting + sum(served.chat.waiting for served in gateway.models))
        gateway.metrics.kv_holds(tokens=stats.kv_tokens, image_tokens=stats.kv_image_tokens)
        gateway.metrics.cache_is(turned_down=stats.cache_turned_down)
        observe_memory(gateway.metrics, stats)
        gateway.metrics.replicas.samples = replica_samples(by_model)
        gateway.metrics.engine_stages.samples = engine_stage_samples(by_model)
        return Response(gateway.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def version(self, _: Request) -> Response:
        return JSONResponse({"version": __version__})

    async def docs(self, request: Request) -> Response:
        return HTMLResponse(page(str(request.base_url)))

    async def openapi(self, _: Request) -> Response:
        return JSONResponse(openapi())


async def _opening(stream: Relay[AnswerEvent]) -> tuple[Begun | None, AnswerEvent | Silence]:
    """What headers can say, None while it is not known, and the first event behind it."""
    event = await anext(stream)
    return (event, await anext(stream)) if isinstance(event, Begun) else (None, event)


def _told(exchange: _Exchange, answer: Begun | Done) -> dict[str, str]:
    """Headers about the pictures and the prompt."""
    asked = exchange.http.headers.get(CACHE_HEADER)
    return {**warnings_header(answer.warnings), **cache_header(asked, [image.found for image in answer.images])}


async def _unless_gone(work: Coroutine[Any, Any, T], request: Request) -> T | None:
    """The result of ``work``; None when the client went away first, which cancels ``work`` and all that it holds."""
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        watcher.cancel()
        task.cancel()
        await asyncio.wait({task, watcher})


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
