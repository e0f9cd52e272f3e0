"""Fault injection: a runner that is slower by a known time per call, so that tests meet slow stages on purpose."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace

from opsin.core.stages import Stage
from opsin.engine.local.messages import PictureData
from opsin.engine.local.runner_api import Encoded, LoadedModel, Runner
from opsin.engine.local.sequence import Sequence


class DelayedRunner:
    """Wraps a runner; ``delays`` are seconds per picture (vision_encode), per prompt and per decode step."""

    def __init__(self, runner: Runner, delays: Mapping[Stage, float]) -> None:
        self._runner = runner
        self._delays = delays

    def load(self, progress: Callable[[str], None]) -> LoadedModel:
        """See Runner."""
        return self._runner.load(progress)

    def encode(self, pictures: Seq[PictureData]) -> list[Encoded]:
        """See Runner."""
        delay = self._delays.get(Stage.VISION_ENCODE, 0.0)
        time.sleep(delay * len(pictures))
        return [replace(encoded, seconds=encoded.seconds + delay) for encoded in self._runner.encode(pictures)]

    def prefill(self, sequence: Sequence) -> int:
        """See Runner."""
        time.sleep(self._delays.get(Stage.PREFILL, 0.0))
        return self._runner.prefill(sequence)

    def decode(self, sequences: Seq[Sequence]) -> list[int]:
        """See Runner."""
        time.sleep(self._delays.get(Stage.DECODE, 0.0))
        return self._runner.decode(sequences)

    def release(self, sequence: Sequence) -> None:
        """See Runner."""
        self._runner.release(sequence)

    def memory_bytes(self) -> int | None:
        """See Runner."""
        return self._runner.memory_bytes()
