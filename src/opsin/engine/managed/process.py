"""The program of an engine as a child process: start, read its lines, see it end, end it. Knows no HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping

import psutil

from opsin.engine.managed.launch import Launch
from opsin.engine.managed.lines import Lines

logger = logging.getLogger(__name__)

_OURS = "OPSIN_"
_READ_BYTES = 2**16
_KEEPER_GRACE_S = 5.0
"""Beyond the grace of the program: to kill what is left of it."""


class EngineProcess:
    """One running program behind its keeper, in a session of its own. ``pid`` is the keeper's."""

    def __init__(self, process: asyncio.subprocess.Process, stop_timeout_s: float, tell: Callable[[str], None]) -> None:
        self._process = process
        self._stop_timeout_s = stop_timeout_s
        self._tell = tell
        self._reading = asyncio.create_task(self._read(), name="managed-engine-log")

    @classmethod
    async def spawn(cls, launch: Launch, stop_timeout_s: float, tell: Callable[[str], None]) -> EngineProcess:
        """Starts the program; ``tell`` gets its lines. A program that is not there ends at once, with status 127."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "opsin.engine.managed.keeper", "--grace", str(stop_timeout_s), "--"),
            *launch.words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=_environment(launch),
            start_new_session=True,
        )
        return cls(process, stop_timeout_s, tell)

    @property
    def ended(self) -> bool:
        """Whether the program, and all that it had started, is gone."""
        return self._process.returncode is not None

    async def wait(self) -> int:
        """Its exit status, once it has ended and its last line was told."""
        status = await self._process.wait()
        await asyncio.wait({self._reading})
        return status

    async def ended_within(self, timeout_s: float) -> bool:
        """Waits a little, as connections break before their process is seen to end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._process.wait()
        return self.ended

    async def stop(self) -> None:
        """Lets go of the keeper, which ends the program; returns when all is gone. Fine for one that has ended."""
        await asyncio.shield(self._stop())

    def memory_bytes(self) -> int | None:
        """Resident memory of the program and all that it has started; what they share is counted in each."""
        try:
            return sum(process.memory_info().rss for process in psutil.Process(self._process.pid).children(True))
        except psutil.Error:
            return None

    async def _stop(self) -> None:
        assert self._process.stdin is not None, "it was started with a pipe"
        self._process.stdin.close()
        try:
            async with asyncio.timeout(self._stop_timeout_s + _KEEPER_GRACE_S):
                await self.wait()
        except TimeoutError:
            logger.error("the keeper %d of the engine does not end and is killed", self._process.pid)
            self._process.kill()
            await self.wait()

    async def _read(self) -> None:
        """To the end, or a full pipe would stop the program."""
        assert self._process.stdout is not None, "it was started with a pipe"
        lines = Lines()
        while data := await self._process.stdout.read(_READ_BYTES):
            for line in lines.feed(data, time.monotonic()):
                self._tell(line)


def _environment(launch: Launch) -> Mapping[str, str]:
    """opsin's own variables hold its clients' keys, and are nothing to the engine."""
    inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith(_OURS)}
    return inherited | {name: value.get_secret_value() for name, value in launch.environment.items()}
