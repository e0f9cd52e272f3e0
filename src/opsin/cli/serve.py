"""``opsin serve``: listens at once, answers as soon as the engine is ready."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
import sys
from typing import Any

import uvicorn
import uvloop
from rich.console import Console
from rich.markup import escape

from opsin.app import Application, build
from opsin.core.errors import ConfigError, OpsinError
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
    listening = _bind(settings.gateway.host, settings.gateway.port)
    listener = Listener(
        uvicorn.Config(
            create_app(application.gateway),
            access_log=False,
            log_level="warning",
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=DRAIN_SECONDS,
        )
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _stop, number, listener, application)
    starting = asyncio.create_task(_start(application, listener, settings))
    try:
        await listener.serve(sockets=[listening])
        return 0 if not starting.done() or starting.result() else 1
    finally:
        starting.cancel()
        await asyncio.wait({starting})
        await application.close()
        listening.close()


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}") from None


def _stop(number: int, listener: Listener, application: Application) -> None:
    """Drains; what still runs shortly before the end of it is answered by the closing engine, not cut off."""
    listener.handle_exit(number, None)
    loop = asyncio.get_running_loop()
    loop.call_later(DRAIN_SECONDS - 2, lambda: loop.create_task(application.gateway.engine.close()))


async def _start(application: Application, listener: Listener, settings: Settings) -> bool:
    """Starts the engine with a sign of life on the terminal; False, and no server, if it cannot start."""
    console = Console(stderr=True, markup=False)
    try:
        with console.status(f"loading {escape(settings.model)} …"):
            await application.start()
            await listener.listening.wait()
    except Exception as error:  # the border of the start: whatever failed, no dead server stays behind
        if not isinstance(error, OpsinError):
            logger.exception("the start failed")
        print(f"opsin: {error}", file=sys.stderr)
        listener.should_exit = True
        return False
    device = application.gateway.engine.capabilities().device or "upstream"
    host = f"[{settings.gateway.host}]" if ":" in settings.gateway.host else settings.gateway.host
    console.print(f"serving {application.gateway.models.default} on http://{host}:{listener.port} ({device})")
    return True
