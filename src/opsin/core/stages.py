"""The six stages of a request and the timeline that every request carries."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum


class Stage(StrEnum):
    """Critical-path stages, in order. ``QUEUE`` is every wait; ``VISION_ENCODE`` includes the connector."""

    MEDIA_LOAD = "media_load"
    PREPROCESS = "preprocess"
    QUEUE = "queue"
    VISION_ENCODE = "vision_encode"
    PREFILL = "prefill"
    DECODE = "decode"


_WIRE_NAMES = {stage: f"{stage}_ms" for stage in Stage}


@dataclass(frozen=True, slots=True)
class Timeline:
    """Non-overlapping stage times of one finished request, in seconds.

    A stage that the engine cannot tell (a remote engine's insides) is absent, not 0. ``upstream_s`` is what a remote
    engine took beyond the stages that it told, None where none was asked. ``sources`` names who told a stage that was
    not measured here. ``peak_memory_bytes`` is the engine's while it ran the request; None where others ran beside it,
    or the engine cannot tell.
    """

    total_s: float
    stages_s: Mapping[Stage, float]
    upstream_s: float | None = None
    sources: Mapping[Stage, str] = field(default_factory=dict[Stage, str])
    peak_memory_bytes: int | None = None

    @property
    def unattributed_s(self) -> float:
        """What no stage accounts for."""
        return max(0.0, self.total_s - sum(self.stages_s.values()) - (self.upstream_s or 0.0))

    def to_wire(self) -> dict[str, float]:
        """The ``opsin.timeline`` object: ``milliseconds``, then ``peak_memory_bytes`` where it is known."""
        peak = {} if self.peak_memory_bytes is None else {"peak_memory_bytes": self.peak_memory_bytes}
        return {**self.milliseconds(), **peak}

    def milliseconds(self) -> dict[str, float]:
        """Stages in order, then ``upstream_ms`` if there is one, ``unattributed_ms`` and ``total_ms``."""
        stages_s = self.stages_s
        stages = {name: round(stages_s[stage] * 1e3, 3) for stage, name in _WIRE_NAMES.items() if stage in stages_s}
        return {
            **stages,
            **({} if self.upstream_s is None else {"upstream_ms": round(self.upstream_s * 1e3, 3)}),
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
        self._upstream_s: float | None = None
        self._sources: dict[Stage, str] = {}

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

    def told(self, source: str, stages_s: Mapping[Stage, float], upstream_s: float) -> None:
        """Adds what a remote engine says, and what is left of the time that it took."""
        for stage, seconds in stages_s.items():
            self.add(stage, seconds)
        self._sources |= dict.fromkeys(stages_s, source)
        self._upstream_s = upstream_s

    def timeline(self, peak_memory_bytes: int | None = None) -> Timeline:
        """The timeline up to now."""
        return Timeline(
            total_s=time.monotonic() - self.started_at,
            stages_s=dict(self._stages_s),
            upstream_s=self._upstream_s,
            sources=dict(self._sources),
            peak_memory_bytes=peak_memory_bytes,
        )
