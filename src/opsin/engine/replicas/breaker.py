"""Whether a replica is left alone for a while: a circuit breaker with outlier ejection. Knows no engine.

closed     requests go there; ``eject_after`` failures in a row open it
open       none go there, for a time that doubles with every further failure
half open  the time is over: one request goes there and decides
"""

from __future__ import annotations

from collections.abc import Callable

from opsin.engine.replicas.config import RoutingConfig


class Breaker:
    """Of one replica. ``clock`` gives seconds that never go back."""

    def __init__(self, config: RoutingConfig, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock
        self._failures = 0  # in a row
        self._times_open = 0  # since it last was closed for as long as it can be open
        self._open_until: float | None = None
        self._closed_since = clock()
        self._on_trial = False
        self.ejections = 0
        """All of them, for a counter."""

    @property
    def is_open(self) -> bool:
        """Whether the replica is ejected; half open included."""
        return self._open_until is not None

    def admits(self) -> bool:
        """Whether a request may go there now."""
        return self._open_until is None or (not self._on_trial and self._clock() >= self._open_until)

    def begun(self) -> None:
        """A request goes there; where it is half open, this one is the trial."""
        self._on_trial = self.is_open

    def abandoned(self) -> None:
        """A request ended in a way that says nothing about the replica; another one may be the trial."""
        self._on_trial = False

    def succeeded(self) -> None:
        """A request was answered, which closes it."""
        self._on_trial = False
        self._failures = 0
        if self._open_until is not None:
            self._open_until, self._closed_since = None, self._clock()

    def failed(self) -> None:
        """A request failed for a reason that lies with the replica. Requests of before an ejection do not extend it."""
        self._failures += 1
        if self._open_until is None and self._failures >= self._config.eject_after:
            healthy_s = self._clock() - self._closed_since
            self._open(1 if healthy_s >= self._config.max_eject_s else self._times_open + 1)
        elif self._open_until is not None and self._clock() >= self._open_until:
            self._open(self._times_open + 1)
        self._on_trial = False

    def _open(self, times: int) -> None:
        self._times_open = times
        self.ejections += 1
        for_s = min(self._config.max_eject_s, self._config.eject_s * 2.0 ** min(times - 1, 64))
        self._open_until = self._clock() + for_s
