"""``opsin serve`` as a child process, and what it holds: for tests and benchmarks that end with a real server.

Knows no HTTP and no model.
"""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import psutil

ENGINE = "opsin.engine.local.worker"
RENDERER = "opsin.media.worker"

_STOP_TIMEOUT_S = 60.0
_ANNOUNCEMENT = re.compile(r"^serving .* on (https?://\S+)")


class ServerProcess:
    """One server on a free port, unless ``arguments`` name one. Its standard error is kept in ``lines``.

    ``shielded`` from Ctrl-C in the terminal, for a parent that wants to look at it afterwards.
    """

    def __init__(self, *arguments: str, environment: Mapping[str, str] | None = None, shielded: bool = False) -> None:
        port = () if "--port" in arguments else ("--port", "0")
        self.lines: list[str] = []
        self._announced: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "opsin", "serve", *arguments, *port],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
            process_group=0 if shielded else None,
        )
        # Read to the end, or a full pipe would stop the server.
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self.wait()
        finally:
            self._process.kill()

    @property
    def pid(self) -> int:
        """Process id of the gateway."""
        return self._process.pid

    @property
    def log(self) -> str:
        """Standard error up to now."""
        return "".join(self.lines)

    def until_ready(self, timeout_s: float = 300.0) -> str:
        """The URL, once the server says that it serves. Raises RuntimeError with its log when it ended instead."""
        url = self._announced.get(timeout=timeout_s)
        if url is None:
            raise RuntimeError(f"the server did not start:\n{self.log}")
        return url

    def wait(self, timeout_s: float = _STOP_TIMEOUT_S) -> int:
        """The exit status. Raises subprocess.TimeoutExpired."""
        status = self._process.wait(timeout_s)
        self._reader.join(timeout_s)
        return status

    def signal(self, number: int) -> None:
        """Sends a signal to the gateway process alone."""
        self._process.send_signal(number)

    def gateway(self) -> psutil.Process:
        """The process that listens."""
        return psutil.Process(self.pid)

    def engines(self) -> list[psutil.Process]:
        """Engine processes that run: one, or none while it is down."""
        return self._children(ENGINE)

    def renderers(self) -> list[psutil.Process]:
        """Processes that decode pictures."""
        return self._children(RENDERER)

    def zombies(self) -> list[psutil.Process]:
        """Children that ended and that nobody has noticed."""
        return [child for child in self.gateway().children(recursive=True) if _is_zombie(child)]

    def _children(self, module: str) -> list[psutil.Process]:
        return [child for child in self.gateway().children() if module in _command(child)]

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append(line)
            if found := _ANNOUNCEMENT.search(line):
                self._announced.put(found[1])
        self._process.stderr.close()
        self._announced.put(None)


def _command(process: psutil.Process) -> list[str]:
    """Empty for one that ended meanwhile."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
