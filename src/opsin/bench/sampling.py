"""Memory and CPU of the server's processes, seen from outside: twelve times a second, per level. Knows no request.

Resident bytes count a page that two processes share in both. Peaks between two samples are missed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import psutil

from opsin.bench.record import ServerProcess, ServerSamples

_PERIOD_S = 0.08
_FAMILY_EVERY = 12
"""Samples between two looks for new child processes, which cost more than a sample."""


def server_pid(url: str) -> int | None:
    """The process that listens on the URL's port of this machine; None when it is elsewhere or not ours to see."""
    parts = urlsplit(url)
    if not _is_loopback(parts.hostname or ""):
        return None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        listeners = _listeners(port)
        return next((pid for pid in sorted(listeners) if psutil.Process(pid).ppid() not in listeners), None)
    except psutil.Error:
        return None


def _listeners(port: int) -> set[int]:
    pids = set[int]()
    for one in psutil.net_connections("tcp"):
        if one.pid and one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port:
            pids.add(one.pid)
    return pids


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class ServerSampler:
    """Samples a process and all its descendants. ``clock`` gives nanoseconds since the run's zero."""

    def __init__(self, pid: int, clock: Callable[[], int]) -> None:
        self._pid = pid
        self._clock = clock
        self._ticks: list[int] = []
        self._processes: dict[int, tuple[psutil.Process, ServerProcess]] = {}

    async def run(self) -> None:
        """Until cancelled."""
        number = 0
        while True:
            start = time.monotonic()
            self.sample(look_for_children=number % _FAMILY_EVERY == 0)
            number += 1
            await asyncio.sleep(max(0.0, start + _PERIOD_S - time.monotonic()))

    def sample(self, *, look_for_children: bool) -> None:
        """One tick of every process."""
        if look_for_children:
            self._look()
        self._ticks.append(self._clock())
        for process, series in self._processes.values():
            rss, cpu = _measure(process)
            series.rss_bytes.append(rss)
            series.cpu_s.append(cpu)

    @property
    def samples(self) -> ServerSamples:
        """Everything so far."""
        return ServerSamples(self._ticks, [series for _, series in self._processes.values()])

    def _look(self) -> None:
        try:
            server = psutil.Process(self._pid)
            family = [server, *server.children(recursive=True)]
        except psutil.Error:
            return
        for process in family:
            if process.pid not in self._processes:
                missed: list[None] = [None] * len(self._ticks)
                series = ServerProcess(process.pid, _name(process), [*missed], [*missed])
                self._processes[process.pid] = (process, series)


def _measure(process: psutil.Process) -> tuple[int | None, float | None]:
    try:
        with process.oneshot():
            times = process.cpu_times()
            return process.memory_info().rss, times.user + times.system
    except psutil.Error:
        return None, None


def _name(process: psutil.Process) -> str:
    """``python -m module`` by its module, anything else by its file."""
    try:
        words = process.cmdline()
        return words[words.index("-m") + 1] if "-m" in words[:-1] else process.name()
    except psutil.Error:
        return "gone"
