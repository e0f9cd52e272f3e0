"""When a request has to be over."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import TypeVar

from opsin.core.errors import Code, DeadlineExceeded, InvalidRequest, OpsinError, Overloaded
from opsin.gateway.closing import Closing

T = TypeVar("T")

HEADER = "x-request-timeout"
"""By which a client asks for less time than ``request_timeout_s``."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """``limit_s`` after ``started_at``, which is ``time.monotonic()``, or ``grace_s`` after the server closes."""

    started_at: float
    limit_s: float
    closing: Closing
    grace_s: float = 0.0

    @classmethod
    def after(cls, limit_s: float, closing: Closing) -> Deadline:
        """From now on."""
        return cls(time.monotonic(), limit_s, closing)

    def lowered(self, wish: str | None) -> Deadline:
        """The client's own limit from the header, which cannot raise ours.

        Raises:
            InvalidRequest: not a positive number of seconds.
        """
        if wish is None:
            return self
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", wish) or float(wish) <= 0:
            raise InvalidRequest(f"the header '{HEADER}' must be a positive number of seconds", param=HEADER)
        return replace(self, limit_s=min(self.limit_s, float(wish)))

    def later(self, seconds: float) -> Deadline:
        """So much later in either case: for what has to outlast the answer itself."""
        return Deadline(self.started_at, self.limit_s + seconds, self.closing, self.grace_s + seconds)

    @property
    def elapsed_s(self) -> float:
        """Since the start."""
        return time.monotonic() - self.started_at

    async def within(self, work: Awaitable[T]) -> T:
        """The result of ``work``, which is cancelled at the deadline.

        Raises:
            DeadlineExceeded: it took too long.
            Overloaded: the server closes.
        """
        timeout = asyncio.timeout(self.limit_s - self.elapsed_s)
        try:
            async with timeout:
                with self.closing.ends(timeout, self.grace_s):
                    return await work
        except TimeoutError:
            if not timeout.expired():
                raise
            raise self._error() from None

    def _error(self) -> OpsinError:
        if self.closing.begun:
            return Overloaded("the server is shutting down", code=Code.SHUTTING_DOWN, retry_after_s=5)
        return DeadlineExceeded(f"the request took longer than {self.limit_s:g} s")
