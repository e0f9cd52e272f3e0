"""``opsin serve``: listens at once, answers as soon as the engine is ready."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import uvloop
from prometheus_client import disable_created_metrics
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from opsin import managing, startup
from opsin.app import Application, build
from opsin.cli.flags import read
from opsin.cli.reloader import Reloader
from opsin.core.allocator import keep_large_blocks
from opsin.core.errors import ConfigError, OpsinError
from opsin.core.garbage import settle
from opsin.core.problems import raise_all
from opsin.gateway.config import GatewayConfig
from opsin.gateway.edge import metrics_app, public_app, server
from opsin.gateway.exchange import LAST_WORDS_S
from opsin.gateway.listener import Listener, bind
from opsin.gateway.routes import Gateway
from opsin.settings import Configuration, Settings
from opsin.telemetry import logs

logger = logging.getLogger(__name__)

_CUT_OFF_S = LAST_WORDS_S + 1.0
"""After the end of the drain. By then all streams have ended by themselves; on a busy machine it can take seconds."""


_TELL_S = 1.0


def run(args: argparse.Namespace) -> int:
    """Serves until a signal; returns the exit status."""
    configuration = read(args)
    if args._print_command:
        return _print_command(configuration)
    raise_all(startup.problems(configuration))
    logs.configure(configuration.settings.log_level, configuration.settings.log_format)
    for notice in startup.notices(configuration):
        logger.warning("%s", notice)
    keep_large_blocks()
    disable_created_metrics()  # a second sample of every counter, which nobody charts
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(configuration.settings, lambda: read(args)))


def _print_command(configuration: Configuration) -> int:
    """What would be started, on standard output, and what is to be known about it, on standard error."""
    settings = configuration.settings
    raise_all(startup.problems(configuration, listens=False, starts=False))
    if not settings.engine.is_managed:
        raise ConfigError(f"engine {settings.engine} is no program that opsin starts: there is no command to print")
    for notice in startup.notices(configuration):
        print(f"opsin: {notice}", file=sys.stderr)
    print(managing.printed(settings))
    return 0


async def _serve(settings: Settings, read_again: Callable[[], Configuration]) -> int:
    application = build(settings)
    config = settings.gateway
    listening = bind(config.host, config.port)
    listener = Listener(server(public_app(application.gateway, config), config))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _stop, listener, application.gateway)
    async with _metrics_listener(application, config) as metrics:
        starting = asyncio.create_task(_start(application, listener, metrics, settings))
        reloader = Reloader(application, read_again, starting)
        loop.add_signal_handler(signal.SIGHUP, reloader.reload_soon)
        try:
            await listener.serve(sockets=[listening])
            return 0 if not starting.done() or starting.result() else 1
        finally:
            starting.cancel()
            await asyncio.wait({starting})
            await reloader.close()
            await application.close()
            listening.close()
            logger.info("stopped")


@asynccontextmanager
async def _metrics_listener(application: Application, config: GatewayConfig) -> AsyncGenerator[Listener | None]:
    """``/metrics`` on a port of its own, to the end of the drain; None when it has none."""
    if config.metrics_port is None:
        yield None
        return
    listener = Listener(server(metrics_app(application.gateway), config))
    with bind(config.host, config.metrics_port) as listening:
        serving = asyncio.create_task(listener.serve(sockets=[listening]))
        try:
            yield listener
        finally:
            listener.should_exit = listener.force_exit = True
            await serving


def _stop(listener: Listener, gateway: Gateway) -> None:
    """The first signal lets requests in progress finish; a second one, or the end of the drain, ends them."""
    if listener.should_exit:
        _end(listener, gateway)
        return
    listener.should_exit = True
    if requests := gateway.admission.in_progress:
        drain_s = gateway.config.drain_timeout_s
        logger.info("stopping: up to %g s for the requests in progress (%d); again to stop now", drain_s, requests)
    else:
        logger.info("stopping: no request is in progress")
    asyncio.get_running_loop().call_later(gateway.config.drain_timeout_s, _end, listener, gateway)


def _end(listener: Listener, gateway: Gateway) -> None:
    """Answers what is left, then cuts off whoever does not take the answer."""
    if requests := gateway.admission.in_progress:
        logger.warning("stopping: the requests still in progress (%d) are ended", requests)
    gateway.closing.begin()
    asyncio.get_running_loop().call_later(_CUT_OFF_S, setattr, listener, "force_exit", True)


async def _start(application: Application, listener: Listener, metrics: Listener | None, settings: Settings) -> bool:
    """Starts the engine with a sign of life on the terminal; False, and no server, if it cannot start."""
    console = Console(stderr=True, markup=False)
    try:
        with console.status("") as status:
            what = ", ".join(table.name for table in settings.models) or settings.model
            telling = asyncio.create_task(_tell(status, application.gateway, what))
            try:
                await application.start()
            finally:
                telling.cancel()
                await asyncio.wait({telling})
            settle()
            await listener.listening.wait()
    except Exception as error:  # the border of the start: whatever failed, no dead server stays behind
        if not isinstance(error, OpsinError):
            logger.exception("the start failed")
        print(f"opsin: {error}", file=sys.stderr)
        listener.should_exit = True
        return False
    models = application.gateway.models
    names = ", ".join(served.names.default for served in models)
    devices = ", ".join(dict.fromkeys(served.engine.capabilities().device or "upstream" for served in models))
    url = _url(settings.gateway, listener)
    console.print(f"serving {names} on {url}{settings.gateway.root_path} ({devices})")
    if metrics is not None:
        await metrics.listening.wait()
        console.print(f"metrics on {_url(settings.gateway, metrics)}/metrics")
    return True


async def _tell(status: Status, gateway: Gateway, model: str) -> None:
    """What the start waits for, and since when: an engine may compile for minutes."""
    began = time.monotonic()
    while True:
        reason = next(filter(None, gateway.models.unready_reasons().values()), "")
        status.update(f"loading {escape(model)} … {time.monotonic() - began:.0f} s {escape(reason)}")
        await asyncio.sleep(_TELL_S)


def _url(config: GatewayConfig, listener: Listener) -> str:
    scheme = "https" if config.ssl_certfile else "http"
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"{scheme}://{host}:{listener.port}"
