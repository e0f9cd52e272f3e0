"""A foreign engine as a group of processes that a test can kill and start again on the same port."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from prometheus_client.parser import text_string_to_metric_families

_STOP_TIMEOUT_S = 60.0
_LOOK_S = 0.5
_LAST_BYTES = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """How to start an engine. ``ready``: the path that answers 200 once requests would be answered.

    ``grpc_port``: of an engine that is asked there.
    """

    words: tuple[str, ...]
    port: int
    ready: str
    grpc_port: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


class EngineProcess:
    """Started by ``start``, and gone with all its children at the end of the block."""

    def __init__(self, command: Command, log: Path) -> None:
        self.url = f"http://127.0.0.1:{command.port}"
        self.grpc_url = f"grpc://127.0.0.1:{command.grpc_port}"
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_TIMEOUT_S)
        self.kill()

    def start(self, timeout_s: float) -> None:
        """Until it is ready. Raises RuntimeError with the end of its log when it ended, or is not ready in time."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command.words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._command.environment},
                start_new_session=True,
            )
        deadline = time.monotonic() + timeout_s
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                end = self._log.read_bytes()[-_LAST_BYTES:].decode(errors="replace")
                raise RuntimeError(f"{self._command.words[0]} did not start within {timeout_s:g} s:\n{end}")
            time.sleep(_LOOK_S)

    def kill(self) -> None:
        """SIGKILL to every process of the group, as the kernel does when memory is short.

        To the one that listens first: it must not live to tell its clients that another one died.
        """
        assert self._process is not None, "kill follows start"
        self._process.kill()
        self._process.wait(_STOP_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):  # all of them had ended
            os.killpg(self._process.pid, signal.SIGKILL)

    def kill_part(self, name: str) -> None:
        """SIGKILL to that one process under the one that listens."""
        assert self._process is not None, "kill_part follows start"
        (part,) = [one for one in psutil.Process(self._process.pid).children(recursive=True) if one.name() == name]
        part.kill()

    def samples(self) -> dict[str, float]:
        """The engine's own metrics by name, summed over their labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=_STOP_TIMEOUT_S) as response:
            text = response.read().decode()
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        return sums

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + self._command.ready, timeout=_STOP_TIMEOUT_S) as response:
                return response.status == 200
        except (urllib.error.URLError, OSError):
            return False
