"""``opsin serve``: listens at once, answers as soon as the engine is ready."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from typing import Any

import uvicorn
import uvloop
from rich.console import Console

from opsin.app import Application, build
from opsin.core.errors import OpsinError
from opsin.gateway.auth import check_exposure
from opsin.gateway.listener import Listener
from opsin.gateway.routes import create_app
from opsin.settings import Settings, load_settings
from opsin.telemetry import logs

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 30
"""Requests in progress may finish for so long after the first signal."""


def run(args: argparse.Namespace, flags: dict[str, Any]) -> int:
    """Serves until a signal; returns the exit status."""
    settings = load_settings(flags)
    check_exposure(settings.gateway)
    logs.configure(settings.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings))


async def _serve(settings: Settings) -> int:
    application = build(settings)
    listener = Listener(
        uvicorn.Config(
            create_app(application.gateway),
            host=settings.gateway.host,
            port=settings.gateway.port,
            access_log=False,
            log_level="warning",
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=DRAIN_SECONDS,
        )
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, listener.handle_exit, number, None)
    starting = asyncio.create_task(_start(application, listener, settings))
    try:
        await listener.serve()
        return 0 if not starting.done() or starting.result() else 1
    finally:
        starting.cancel()
        await asyncio.wait({starting})
        await application.close()


async def _start(application: Application, listener: Listener, settings: Settings) -> bool:
    """Starts the engine with a sign of life on the terminal; False, and no server, if it cannot start."""
    console = Console(stderr=True)
    try:
        with console.status(f"loading {settings.model} …"):
            await application.start()
            await listener.listening.wait()
    except OpsinError as error:
        print(f"opsin: {error.message}", file=sys.stderr)
        listener.should_exit = True
        return False
    device = application.gateway.engine.capabilities().device
    name = application.gateway.models[0].id
    console.print(f"serving [bold]{name}[/] on http://{settings.gateway.host}:{listener.port} ({device or 'upstream'})")
    return True
