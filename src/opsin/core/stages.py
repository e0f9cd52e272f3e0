"""The six stages of a request and the timeline that every request carries."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum


class Stage(StrEnum):
    """Critical-path stages, in order. ``QUEUE`` is every wait; ``VISION_ENCODE`` includes the connector."""

    MEDIA_LOAD = "media_load"
    PREPROCESS = "preprocess"
    QUEUE = "queue"
    VISION_ENCODE = "vision_encode"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Timeline:
    """Non-overlapping stage times of one finished request, in seconds.

    A stage that the engine cannot tell (a remote engine's insides) is absent, not 0.
    """

    total_s: float
    stages_s: Mapping[Stage, float]

    @property
    def unattributed_s(self) -> float:
        """What no stage accounts for."""
        return max(0.0, self.total_s - sum(self.stages_s.values()))

    def to_wire(self) -> dict[str, float]:
        """The ``opsin.timeline`` object: milliseconds, stages in order, then ``unattributed_ms`` and ``total_ms``."""
        stages = {f"{stage}_ms": round(self.stages_s[stage] * 1e3, 3) for stage in Stage if stage in self.stages_s}
        return {
            **stages,
            "unattributed_ms": round(self.unattributed_s * 1e3, 3),
            "total_ms": round(self.total_s * 1e3, 3),
        }


class Stopwatch:
    """Collects the stage times of one request as it moves through the stages.

    Times are ``time.monotonic()``, which is one clock for all processes of a machine.
    """

    def __init__(self) -> None:
        self.started_at = time.monotonic()
        self._stages_s: dict[Stage, float] = {}
        self._in_blocks_s = 0.0

    @contextmanager
    def stage(self, stage: Stage) -> Generator[None]:
        """Adds the wall time of the block to ``stage``; work done in parallel inside the block counts once.

        What a block inside this one adds to another stage is not this one's.
        """
        start, before_s = time.monotonic(), self._in_blocks_s
        try:
            yield
        finally:
            elapsed_s = time.monotonic() - start
            self.add(stage, elapsed_s - (self._in_blocks_s - before_s))
            self._in_blocks_s = before_s + elapsed_s

    def add(self, stage: Stage, seconds: float) -> None:
        """Adds seconds measured elsewhere, e.g. by the engine."""
        self._stages_s[stage] = self._stages_s.get(stage, 0.0) + seconds

    def timeline(self) -> Timeline:
        """The timeline up to now."""
        return Timeline(total_s=time.monotonic() - self.started_at, stages_s=dict(self._stages_s))
