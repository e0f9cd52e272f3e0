"""``opsin serve``: listens at once, answers as soon as the engine is ready."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from typing import Any

import uvicorn
from rich.console import Console

from opsin.app import Application, build
from opsin.core.errors import OpsinError
from opsin.gateway.auth import check_exposure
from opsin.gateway.routes import create_app
from opsin.settings import Settings, load_settings
from opsin.telemetry import logs

logger = logging.getLogger(__name__)


def run(args: argparse.Namespace, flags: dict[str, Any]) -> int:
    """Serves until a signal; returns the exit status."""
    settings = load_settings(flags)
    check_exposure(settings.gateway)
    logs.configure(settings.log_level)
    return asyncio.run(_serve(settings))


async def _serve(settings: Settings) -> int:
    application = build(settings)
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(application.gateway),
            host=settings.gateway.host,
            port=settings.gateway.port,
            access_log=False,
            log_level="warning",
            lifespan="off",
            server_header=False,
        )
    )
    starting = asyncio.create_task(_start(application, server, settings))
    try:
        await server.serve()
        return 0 if starting.cancel() or starting.result() else 1
    finally:
        await application.close()


async def _start(application: Application, server: uvicorn.Server, settings: Settings) -> bool:
    """Starts the engine with a sign of life on the terminal; False, and no server, if it cannot start."""
    console = Console(stderr=True)
    try:
        with console.status(f"loading {settings.model} …"):
            await application.start()
            while not server.started:
                await asyncio.sleep(0.01)
    except OpsinError as error:
        print(f"opsin: {error.message}", file=sys.stderr)
        server.should_exit = True
        return False
    device = application.gateway.engine.capabilities().device
    port = server.servers[0].sockets[0].getsockname()[1]
    name = application.gateway.models[0].id
    console.print(
        f"serving [bold]{name}[/] on http://{settings.gateway.host}:{port}" + (f" ({device})" if device else "")
    )
    return True
