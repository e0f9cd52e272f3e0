"""How many requests may be in progress at once; one more is refused before anything of it is loaded."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from opsin.core.errors import Overloaded


class Admission:
    """A bound on requests in progress. Not a queue: the engine queues what was admitted."""

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self.in_progress = 0

    @contextmanager
    def admit(self) -> Generator[None]:
        """Holds one place while the block runs.

        Raises:
            Overloaded: every place is taken.
        """
        if self.in_progress >= self._max_requests:
            raise Overloaded(f"{self._max_requests} requests are in progress, which is the limit", retry_after_s=1)
        self.in_progress += 1
        try:
            yield
        finally:
            self.in_progress -= 1
