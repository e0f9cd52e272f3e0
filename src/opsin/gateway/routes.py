"""The HTTP routes. Thin: read, call, frame."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from opsin import __version__
from opsin.cache.keys import Scopes
from opsin.core.errors import OpsinError
from opsin.engine.api import EngineStats
from opsin.gateway.admission import Admission
from opsin.gateway.auth import Auth
from opsin.gateway.closing import Closing
from opsin.gateway.config import GatewayConfig
from opsin.gateway.docs import openapi, page
from opsin.gateway.erasing import Eraser
from opsin.gateway.errors import on_http_exception, on_opsin_error, to_response
from opsin.gateway.exchange import ChatExchanges, CountExchanges
from opsin.gateway.file_routes import file_routes
from opsin.gateway.intake import Intake
from opsin.gateway.memory import observe_memory
from opsin.gateway.request_id import RequestIds
from opsin.gateway.served import ServedModels
from opsin.gateway.told import engine_stage_samples, replica_samples
from opsin.gateway.uploads import Uploads
from opsin.protocol.response import encode
from opsin.telemetry.metrics import Metrics

OPEN_ROUTES = frozenset({"/health", "/ready"})
"""All others need a key."""

ADMIN_ROUTES = frozenset({"/metrics"})
"""What tells of all tenants."""


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
        Route("/v1/chat/completions", ChatExchanges(gateway), methods=["POST"]),  # these two look at the key themselves
        Route("/v1/tokens", CountExchanges(gateway), methods=["POST"]),
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
