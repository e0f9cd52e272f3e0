"""Between a socket and the routes: HTTPS, pages of other origins, a proxy's path, the metrics' own port."""

from __future__ import annotations

import math
from dataclasses import replace

import uvicorn
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from opsin.gateway.auth import Auth
from opsin.gateway.cache_header import HEADER as CACHE_HEADER
from opsin.gateway.config import GatewayConfig
from opsin.gateway.head import http_protocol
from opsin.gateway.rate_headers import NAMES
from opsin.gateway.routes import Gateway, create_app
from opsin.gateway.streaming import WARNINGS_HEADER

_BACKSTOP_S = 5
"""Beyond the drain: by then every request was answered, and who did not take the answer was cut off."""

_READABLE = ("x-request-id", "server-timing", "retry-after", "x-should-retry", WARNINGS_HEADER, CACHE_HEADER, *NAMES)
"""Headers that a page of an allowed origin may read."""


def public_app(gateway: Gateway, config: GatewayConfig) -> ASGIApp:
    """All routes, as the configuration shows them to the outside."""
    app: ASGIApp = create_app(gateway)
    if config.root_path:
        app = _UnderPath(app, config.root_path)
    if config.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=config.allowed_origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=_READABLE,
        )
    return app


def metrics_app(gateway: Gateway) -> ASGIApp:
    """``/metrics`` without a key, and nothing else."""
    app = create_app(replace(gateway, auth=Auth(())))
    metrics = [route for route in app.routes if isinstance(route, Route) and route.path == "/metrics"]
    return Starlette(routes=metrics, exception_handlers=app.exception_handlers)


def server(app: ASGIApp, config: GatewayConfig) -> uvicorn.Config:
    """uvicorn's side of it."""
    password = config.ssl_keyfile_password
    return uvicorn.Config(
        app,
        http=http_protocol(config),
        access_log=False,
        log_level="warning",
        log_config=None,  # its own would print the texts of exceptions
        lifespan="off",
        server_header=False,
        proxy_headers=False,  # nothing here asks who a client is but by its key
        timeout_graceful_shutdown=math.ceil(config.drain_timeout_s) + _BACKSTOP_S,
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
        ssl_keyfile_password=password.get_secret_value() if password else None,
    )


class _UnderPath:
    """Behind a proxy that shows the server under a path, whether or not it takes the path off.

    uvicorn's own ``root_path`` serves only proxies that do.
    """

    def __init__(self, app: ASGIApp, path: str) -> None:
        self._app = app
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, "root_path": self._path}, receive, send)
