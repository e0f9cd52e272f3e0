"""uvicorn, embedded: tells when and where it listens, and leaves signals to whoever runs the loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn


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
