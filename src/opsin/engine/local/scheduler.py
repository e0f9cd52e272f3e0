"""Which sequences work in the next step. Knows no torch, no runner, no messages.

``SequentialScheduler`` runs one request after the other, in order of arrival, one picture or one token per step so that
a cancellation is seen in between. A batching scheduler answers the same three questions with more than one sequence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from opsin.core.stages import Stage
from opsin.engine.local.sequence import Sequence


@dataclass(frozen=True, slots=True)
class ScheduledWork:
    """One step: encode one picture for each of ``encode``, prefill and decode the others by one token."""

    encode: tuple[Sequence, ...] = ()
    prefill: tuple[Sequence, ...] = ()
    decode: tuple[Sequence, ...] = ()


class Scheduler(Protocol):
    """Owns the sequences between Submit and their end."""

    @property
    def max_num_seqs(self) -> int:
        """How many sequences may run at once."""
        ...

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence."""
        ...

    def remove(self, request_id: str) -> Sequence | None:
        """Takes a sequence out, waiting or running; None if there is none."""
        ...

    def schedule(self) -> ScheduledWork:
        """Admits what may run and says what it does next."""
        ...

    def __iter__(self) -> Iterator[Sequence]:
        """All sequences, running ones first."""
        ...

    def __len__(self) -> int:
        """Number of all sequences."""
        ...


class SequentialScheduler:
    """First come, first served, one at a time."""

    max_num_seqs = 1

    def __init__(self) -> None:
        self._waiting: deque[Sequence] = deque()
        self._running: Sequence | None = None

    def add(self, sequence: Sequence) -> None:
        """See Scheduler."""
        self._waiting.append(sequence)

    def remove(self, request_id: str) -> Sequence | None:
        """See Scheduler."""
        sequence = next((sequence for sequence in self if sequence.id == request_id), None)
        if sequence is None:
            return None
        if sequence is self._running:
            self._running = None
        else:
            self._waiting.remove(sequence)
        return sequence

    def schedule(self) -> ScheduledWork:
        """See Scheduler."""
        if self._running is None and self._waiting:
            self._running = self._waiting.popleft()
        if self._running is None:
            return ScheduledWork()
        match self._running.next_stage:
            case Stage.VISION_ENCODE:
                return ScheduledWork(encode=(self._running,))
            case Stage.PREFILL:
                return ScheduledWork(prefill=(self._running,))
            case _:
                return ScheduledWork(decode=(self._running,))

    def __iter__(self) -> Iterator[Sequence]:
        if self._running is not None:
            yield self._running
        yield from self._waiting

    def __len__(self) -> int:
        return len(self._waiting) + (self._running is not None)
