"""A gateway with the fake engine, listening in the test's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import uvicorn

from opsin.app import Application, build
from opsin.gateway.edge import metrics_app, public_app, server
from opsin.gateway.listener import Listener
from opsin.gateway.routes import create_app
from opsin.media.dns import Lookup, system_lookup
from opsin.settings import load_settings
from opsin.testing.scripted_origin import ScriptedOrigin

HOME = "127.0.0.1"


def fetching_from(origin: ScriptedOrigin, **fetch: Any) -> dict[str, Any]:
    """Media settings under which pictures of ``img.example`` may come from a server of this machine."""
    fields = {
        "allowed_media_domains": ["img.example"],
        "allow_plain_http": True,
        "allowed_private_networks": [f"{HOME}/32"],
        "allowed_ports": [origin.port],
        **fetch,
    }
    return {"fetch": fields, "render_workers": 1}


@dataclass(frozen=True, slots=True)
class Served:
    """A running gateway."""

    url: str
    application: Application
    http: aiohttp.ClientSession

    async def chat(self, **body: Any) -> tuple[int, dict[str, Any]]:
        """POSTs a chat request; returns status and JSON."""
        fields = {"messages": [{"role": "user", "content": "Hello."}], **body}
        async with self.http.post(f"{self.url}/v1/chat/completions", json=fields) as response:
            return response.status, await response.json()

    async def until_running(self, count: int) -> None:
        """Waits until the engine runs so many requests; a test that leaks one fails by its timeout."""
        async with asyncio.timeout(30):
            while (await self.application.gateway.models.default.engine.stats()).running != count:  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.01)


@asynccontextmanager
async def gateway(*, lookup: Lookup = system_lookup, started: bool = True, **flags: Any) -> AsyncGenerator[Served]:
    """Starts application and listener, and ends both. ``lookup`` resolves the hosts of pictures.

    Without ``started`` only the workers that decode are started, as while the engine loads.
    """
    application = build(load_settings({"engine": "fake", **flags}), lookup=lookup)
    listener = Listener(
        uvicorn.Config(create_app(application.gateway), port=0, lifespan="off", log_config=None, access_log=False)
    )
    serving = asyncio.create_task(listener.serve())
    try:
        await (application.start() if started else application.renderer.start())
        await listener.listening.wait()
        # A connection that is kept may be closed by the server while a test is busy elsewhere.
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:
            yield Served(f"http://127.0.0.1:{listener.port}", application, http)
    finally:
        listener.should_exit = True
        await serving
        await application.close()


@asynccontextmanager
async def public_side(*, metrics: bool = False, itl_s: float = 0.0, **config: Any) -> AsyncGenerator[str]:
    """What is between a socket and the routes, or the metrics' side of it; yields its URL."""
    settings = load_settings({"engine": "fake", "fake": {"itl_s": itl_s}, "gateway": {"port": 0, **config}})
    application = build(settings)
    app = metrics_app(application.gateway) if metrics else public_app(application.gateway, settings.gateway)
    uvicorn = server(app, settings.gateway)
    uvicorn.port = 0
    listener = Listener(uvicorn)
    serving = asyncio.create_task(listener.serve())
    try:
        await application.start()
        await listener.listening.wait()
        scheme = "https" if settings.gateway.ssl_certfile else "http"
        yield f"{scheme}://127.0.0.1:{listener.port}"
    finally:
        listener.should_exit = True
        await serving
        await application.close()
