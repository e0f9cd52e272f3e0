"""The HTTP routes. Thin: read, call, frame."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from opsin import __version__
from opsin.core.errors import NotFound, OpsinError
from opsin.core.ids import new_request_id, safe_client_id
from opsin.engine.api import Engine
from opsin.gateway.auth import Auth
from opsin.gateway.body import read_body
from opsin.gateway.chat import AnswerEvent, ChatService, Done, count_outcome
from opsin.gateway.docs import openapi, page
from opsin.gateway.errors import as_opsin_error, on_http_exception, on_opsin_error, to_response
from opsin.gateway.memory import observe_memory
from opsin.gateway.streaming import server_timing, to_completion, to_events
from opsin.protocol.request import parse_request
from opsin.protocol.response import ModelList, ModelObject, encode
from opsin.telemetry.logs import fields
from opsin.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

CLIENT_GONE = 499
"""Logged for a client that left."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """What the routes need."""

    chat: ChatService
    engine: Engine
    auth: Auth
    models: tuple[ModelObject, ...]
    metrics: Metrics
    max_body_bytes: int


Handler = Callable[[Request], Awaitable[Response]]
Answer = AsyncGenerator[AnswerEvent, None]
T = TypeVar("T")


def create_app(gateway: Gateway) -> Starlette:
    """The ASGI application; engine and workers are started by the caller."""
    http = _Http(gateway)
    routes = [
        Route("/v1/chat/completions", http.chat_completions, methods=["POST"]),
        Route("/v1/models", http.guarded(http.models)),
        Route("/v1/models/{model:path}", http.guarded(http.model)),
        Route("/health", http.health),
        Route("/ready", http.ready),
        Route("/metrics", http.guarded(http.prometheus)),
        Route("/version", http.guarded(http.version)),
        Route("/docs", http.guarded(http.docs)),
        Route("/openapi.json", http.guarded(http.openapi)),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: on_http_exception, Exception: on_opsin_error})


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One chat request on its way through HTTP."""

    http: Request
    id: str
    started_at: float


class _Http:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def guarded(self, handler: Handler) -> Handler:
        """The same handler behind the key."""

        async def checked(request: Request) -> Response:
            try:
                self._gateway.auth.tenant(request.headers.get("authorization"))
                return await handler(request)
            except OpsinError as error:
                return to_response(error)

        return checked

    async def chat_completions(self, request: Request) -> Response:
        # The id is never the client's own: two clients may send the same.
        exchange = _Exchange(request, new_request_id(), time.monotonic())
        try:
            response = await self._chat(exchange)
        except Exception as caught:  # the border of a route: every request gets exactly one answer
            error = as_opsin_error(caught, exchange.id)
            self._log(exchange, error)
            response = to_response(error)
        response.headers["x-request-id"] = safe_client_id(request.headers.get("x-request-id")) or exchange.id
        return response

    async def _chat(self, exchange: _Exchange) -> Response:
        gateway = self._gateway
        tenant = gateway.auth.tenant(exchange.http.headers.get("authorization"))
        chat = parse_request(await read_body(exchange.http, gateway.max_body_bytes))
        answer = gateway.chat.answer(chat, request_id=exchange.id, tenant=tenant)
        model = chat.model or gateway.models[0].id
        if chat.stream:
            return await self._stream(answer, exchange, model, include_usage=chat.include_usage)
        return await self._complete(answer, exchange, model)

    async def _complete(self, answer: Answer, exchange: _Exchange, model: str) -> Response:
        collected = await _unless_gone(_collect(answer), exchange.http)
        if collected is None:
            return self._gone(exchange)
        text, done = collected
        self._log(exchange, None, done)
        completion = to_completion(text, done, request_id=exchange.id, model=model)
        headers = {"server-timing": server_timing(done.timeline)}
        return Response(encode(completion), headers=headers, media_type="application/json")

    async def _stream(self, answer: Answer, exchange: _Exchange, model: str, *, include_usage: bool) -> Response:
        # The first event decides between an HTTP error and a stream, so it is awaited before any header is sent.
        first = await _unless_gone(_first(answer), exchange.http)
        if first is None:
            return self._gone(exchange)
        events = to_events(
            self._logged(first, answer, exchange), request_id=exchange.id, model=model, include_usage=include_usage
        )
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        return StreamingResponse(events, headers=headers, media_type="text/event-stream")

    async def _logged(self, first: AnswerEvent, rest: Answer, exchange: _Exchange) -> AsyncIterator[AnswerEvent]:
        """The whole stream again, closed and logged whatever happens to it."""
        done = first if isinstance(first, Done) else None
        error: OpsinError | None = None
        try:
            yield first
            async for event in rest:
                done = event if isinstance(event, Done) else done
                yield event
        except Exception as caught:  # the border of a stream
            error = as_opsin_error(caught, exchange.id)
            raise error from caught
        finally:
            await rest.aclose()
            self._log(exchange, error, done)

    def _gone(self, exchange: _Exchange) -> Response:
        """For a client that left; nobody receives it."""
        self._log(exchange, None)
        return Response(status_code=CLIENT_GONE)

    def _log(self, exchange: _Exchange, error: OpsinError | None, done: Done | None = None) -> None:
        gone = error is None and done is None
        if not gone:
            count_outcome(self._gateway.metrics, error)
        logger.info(
            "%s",
            fields(
                request_id=exchange.id,
                status=CLIENT_GONE if gone else (error.status if error else 200),
                code=error.code if error else None,
                ms=round((time.monotonic() - exchange.started_at) * 1e3, 1),
                image_tokens=done.usage.image_tokens if done else None,
                completion_tokens=done.usage.completion_tokens if done else None,
            ),
        )

    async def models(self, _: Request) -> Response:
        return Response(encode(ModelList(list(self._gateway.models))), media_type="application/json")

    async def model(self, request: Request) -> Response:
        name = str(request.path_params["model"])
        for model in self._gateway.models:
            if model.id == name:
                return Response(encode(model), media_type="application/json")
        raise NotFound("there is no such model here", code="model_not_found", param="model")

    async def health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        reason = self._gateway.engine.unready_reason()
        if reason is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "reason": reason}, status_code=503)

    async def prometheus(self, _: Request) -> Response:
        gateway = self._gateway
        stats = await gateway.engine.stats()
        gateway.metrics.running.set(stats.running)
        gateway.metrics.waiting.set(stats.waiting)
        gateway.metrics.kv_holds(tokens=stats.kv_tokens, image_tokens=stats.kv_image_tokens)
        observe_memory(gateway.metrics, stats)
        return Response(gateway.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def version(self, _: Request) -> Response:
        return JSONResponse({"version": __version__})

    async def docs(self, _: Request) -> Response:
        return HTMLResponse(page())

    async def openapi(self, _: Request) -> Response:
        return JSONResponse(openapi())


async def _first(answer: Answer) -> AnswerEvent:
    return await anext(answer)


async def _collect(answer: Answer) -> tuple[str, Done]:
    texts: list[str] = []
    async with aclosing(answer) as events:
        async for event in events:
            if isinstance(event, Done):
                return "".join(texts), event
            texts.append(event.text)
    raise OpsinError("the answer ended without a result")


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
