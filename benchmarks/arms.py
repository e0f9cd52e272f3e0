"""Servers that are compared: started, waited for, and kept still while another one is measured."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import subprocess
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil

from opsin.testing.server_process import ServerProcess

START_TIMEOUT_S = 900.0


class NotStarted(SystemExit):
    """A server ended, or did not answer in time."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One server; ``pid`` None: it cannot be stopped."""

    name: str
    url: str
    pid: int | None


@contextmanager
def ours(
    checkpoint: Path, threads: int, *flags: str, name: str = "opsin", timeout_s: float = START_TIMEOUT_S
) -> Generator[Arm]:
    """``opsin serve`` on a free port."""
    environment = {"OPSIN_LOCAL__NUM_THREADS": str(threads)}
    with ServerProcess(str(checkpoint), *flags, environment=environment) as server:
        yield Arm(name, server.until_ready(timeout_s), server.pid)


@contextmanager
def foreign(
    name: str,
    command: str,
    checkpoint: Path,
    log: Path,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = START_TIMEOUT_S,
) -> Generator[Arm]:
    """Somebody else's server; ``{model}`` and ``{port}`` in ``command`` are filled in. Raises NotStarted."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    places = {"{model}": str(checkpoint), "{port}": str(port)}  # not format(): the flags hold JSON
    words = [places.get(word, word) for word in shlex.split(command)]
    everything = {**os.environ, **(environment or {})}
    with (
        log.open("wb") as output,
        subprocess.Popen(words, stdout=output, stderr=output, env=everything) as process,  # noqa: S603 - the user's own command
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            asyncio.run(_until_ready(url, process, timeout_s, log))
            yield Arm(name, url, process.pid)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it started: a server that has to be killed leaves its engine behind."""
    children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
    for child in children:
        if child.is_running():
            child.kill()


async def _until_ready(url: str, process: subprocess.Popen[bytes], timeout_s: float, log: Path) -> None:
    """A server that lists its model may still be loading it: it is ready when it answers."""
    deadline = time.monotonic() + timeout_s
    async with aiohttp.ClientSession(url) as session:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if await _answers(session):
                    return
            except (aiohttp.ClientError, LookupError):
                pass
            await asyncio.sleep(1)
    raise NotStarted(f"the peer did not start; see {log}")


async def _answers(session: aiohttp.ClientSession) -> bool:
    async with session.get("/v1/models") as response:
        model = (await response.json())["data"][0]["id"]
    body = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "hello"}]}
    async with session.post("/v1/chat/completions", json=body) as response:
        return response.status == 200


def processes(arm: Arm) -> list[psutil.Process]:
    """The server and all that it started."""
    if arm.pid is None:
        return []
    server = psutil.Process(arm.pid)
    return [server, *server.children(recursive=True)]


@contextmanager
def standing_still(*arms: Arm) -> Generator[None]:
    """Stops every process of these servers for as long as the block runs: an idle one that polls would cost a core."""
    stopped = [process for arm in arms for process in processes(arm)]
    for process in stopped:
        process.suspend()
    try:
        yield
    finally:
        for process in reversed(stopped):
            process.resume()
