"""One wall clock over a fetch. Libraries' timeouts are between two reads and do not add up; this one cannot be fed."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from types import TracebackType
from typing import Self

from opsin.core.errors import Code, MediaError
from opsin.media.fetch_config import FetchConfig

RATE_GRACE_S = 1.0
"""So long a body may stay under the least rate: a slow start, or the last bytes of a small picture."""


class Phase(StrEnum):
    """What a fetch is doing; each has a limit of its own below the whole."""

    RESOLVING = "finding the host"
    CONNECTING = "connecting"
    WAITING = "waiting for an answer"
    READING = "the whole fetch"


class FetchDeadline:
    """Ends the block that it guards, in whichever phase that is, over all redirects.

    Raises:
        MediaError: out of time (``media_url_timeout``).
    """

    def __init__(self, config: FetchConfig) -> None:
        self._limits_s = {
            Phase.RESOLVING: config.dns_timeout_s,
            Phase.CONNECTING: config.connect_timeout_s,
            Phase.WAITING: config.first_byte_timeout_s,
            Phase.READING: config.total_timeout_s,
        }
        self._min_bytes_per_s = config.min_bytes_per_s
        self._timeout = asyncio.timeout(None)
        self._phase = Phase.RESOLVING
        self._phase_began = 0.0
        self._ends_at = 0.0

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._ends_at = _now() + self._limits_s[Phase.READING]
        self.enter(Phase.RESOLVING)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError:
            raise MediaError(
                f"The picture could not be fetched: {self._what()}.", code=Code.MEDIA_URL_TIMEOUT
            ) from None

    def enter(self, phase: Phase) -> None:
        """Begins a phase, with its whole time unless the fetch as a whole has less left."""
        self._phase = phase
        self._phase_began = _now()
        self._end_by(self._phase_began + self._limits_s[phase])

    def received(self, num_bytes: int) -> None:
        """Of the body, up to now: so many bytes buy so much time."""
        if self._min_bytes_per_s:
            self._end_by(self._phase_began + RATE_GRACE_S + num_bytes / self._min_bytes_per_s)

    def _end_by(self, when: float) -> None:
        self._timeout.reschedule(min(when, self._ends_at))

    def _what(self) -> str:
        when = self._timeout.when()
        if when is not None and when < self._ends_at and self._phase is Phase.READING:
            return f"it comes more slowly than {self._min_bytes_per_s} bytes per second (min_bytes_per_s)"
        phase = self._phase if when is not None and when < self._ends_at else Phase.READING
        return f"{phase} takes longer than {self._limits_s[phase]:g} s"


def _now() -> float:
    return asyncio.get_running_loop().time()
