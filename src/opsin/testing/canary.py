"""A listener that nobody may reach, and that counts everybody who did."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self


class Canary:
    """Listens on an address of this machine. A connection that was made before ``hits`` is read is in it.

    The kernel completes connections without anybody's help, so neither an event loop nor a thread has to be waited for.
    """

    def __init__(self, host: str = "127.0.0.2", port: int = 0) -> None:
        """Port 0 takes a free one. Raises OSError when the machine has no such address."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family)
        self._listener.setblocking(False)
        self._hits = 0

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    @property
    def hits(self) -> int:
        """Connections so far."""
        while True:
            try:
                made, _ = self._listener.accept()
            except BlockingIOError:
                return self._hits
            made.close()
            self._hits += 1

    def close(self) -> None:
        """Ends listening."""
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
