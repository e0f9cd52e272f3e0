"""Ways out of a render worker, tried in processes that confine themselves exactly like one.

As a program, ``python -m opsin.media.escape WAY MEMORY_BYTES THREADS`` tries one way and tells by its exit status.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from enum import StrEnum

from opsin.media.config import MediaConfig
from opsin.media.confine import confine
from opsin.media.plugins import STARTS_THREADS
from opsin.media.process import worker_environment

REFUSED = "refused"
_OUT, _REFUSED = 0, 77


class Way(StrEnum):
    """What somebody who took a worker over would try first."""

    FILE = "opens a file"
    SOCKET = "opens a socket"
    PROGRAM = "starts a program"


async def attempt(way: Way, config: MediaConfig) -> str:
    """``REFUSED``, or what happened instead."""
    threads = bool(STARTS_THREADS & set(config.formats))
    words = (way.name, str(config.worker_memory_bytes), str(int(threads)))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-s", "-m", "opsin.media.escape", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env=worker_environment(),
        start_new_session=True,
    )
    match await process.wait():
        case status if status in (_REFUSED, -signal.SIGSYS):
            return REFUSED
        case status if status == _OUT:
            return "succeeds"
        case status:
            return f"not known: the attempt ended with status {status}"


def main() -> None:
    """Confines this process and tries; ends with 0 when it got out."""
    way, memory_bytes, threads = sys.argv[1:]
    confine(int(memory_bytes), threads=bool(int(threads)))
    try:
        go(Way[way])
    except OSError:
        os._exit(_REFUSED)
    os._exit(_OUT)


def go(way: Way) -> None:
    """Tries in this process. Raises OSError; a program that starts takes the place of this one."""
    match way:
        case Way.FILE:
            os.open(sys.executable, os.O_RDONLY)
        case Way.SOCKET:
            socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        case Way.PROGRAM:
            os.execv(sys.executable, (sys.executable, "-c", ""))  # noqa: S606


if __name__ == "__main__":
    main()
