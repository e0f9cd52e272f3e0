"""uvicorn, embedded: tells when and where it listens, and leaves signals to whoever runs the loop."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn

from opsin.core.errors import ConfigError


def bind(host: str, port: int) -> socket.socket:
    """A socket that queues connections. Raises ConfigError when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}") from None


class Listener(uvicorn.Server):
    """A server in the running loop. uvicorn's own raises each signal again at its end, before anyone can clean up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    @property
    def port(self) -> int:
        """The bound port, once it listens."""
        return int(self.servers[0].sockets[0].getsockname()[1])

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Captures none."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, then sets ``listening``."""
        await super().startup(sockets)
        self.listening.set()
