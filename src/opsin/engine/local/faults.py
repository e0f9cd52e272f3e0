"""Fault injection: a runner that is slow, or short of memory, in one of its stages, for tests to meet."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace

from opsin.core.stages import Stage
from opsin.engine.local.runner_api import Encoded, LoadedModel, OutOfMemory, Runner, SavedKv
from opsin.engine.local.scheduler import PrefillChunk
from opsin.engine.local.sequence import Sequence, Unit


class FaultyRunner:
    """Wraps a runner.

    ``delays`` are seconds per picture (vision_encode) and per request (prefill, decode), ``step_delay_s`` per decode
    step; ``out_of_memory`` is how many of a stage's first calls raise OutOfMemory.
    """

    def __init__(
        self,
        runner: Runner,
        delays: Mapping[Stage, float],
        out_of_memory: Mapping[Stage, int],
        step_delay_s: float = 0.0,
    ) -> None:
        self._runner = runner
        self._delays = delays
        self._step_delay_s = step_delay_s
        self._out_of_memory = dict(out_of_memory)

    @property
    def packs(self) -> bool:
        """See Runner."""
        return self._runner.packs

    def load(self, progress: Callable[[str], None]) -> LoadedModel:
        """See Runner."""
        return self._runner.load(progress)

    def set_kv_capacity(self, tokens: int) -> None:
        """See Runner."""
        self._runner.set_kv_capacity(tokens)

    def encode(self, units: Seq[Unit], pause: Callable[[], None] | None = None) -> list[Encoded]:
        """See Runner."""
        shares = [unit.share for unit in units]
        delay = self._meet(Stage.VISION_ENCODE, sum(shares))
        return [
            replace(encoded, seconds=encoded.seconds + delay * share)
            for encoded, share in zip(self._runner.encode(units, pause), shares, strict=True)
        ]

    def forward(self, chunks: Seq[PrefillChunk], sequences: Seq[Sequence]) -> dict[str, int]:
        """See Runner."""
        for chunk in chunks:
            self._meet(Stage.PREFILL, chunk.is_last)
        if sequences:
            time.sleep(self._step_delay_s)
            self._meet(Stage.DECODE, any(len(one.output_ids) == 1 for one in sequences))  # the first token is prefill's
        return self._runner.forward(chunks, sequences)

    def save(self, sequence: Sequence) -> SavedKv:
        """See Runner."""
        return self._runner.save(sequence)

    def preempt(self, sequence: Sequence) -> None:
        """See Runner."""
        self._runner.preempt(sequence)

    def release(self, sequence: Sequence) -> None:
        """See Runner."""
        self._runner.release(sequence)

    def kv_bytes(self) -> int:
        """See Runner."""
        return self._runner.kv_bytes()

    def start_peak(self) -> None:
        """See Runner."""
        self._runner.start_peak()

    def peak_bytes(self) -> int | None:
        """See Runner."""
        return self._runner.peak_bytes()

    def memory_bytes(self) -> int | None:
        """See Runner."""
        return self._runner.memory_bytes()

    def _meet(self, stage: Stage, units: float = 1) -> float:
        """Sleeps for each unit, then may raise OutOfMemory; returns the seconds per unit."""
        delay = self._delays.get(stage, 0.0)
        time.sleep(delay * units)
        if self._out_of_memory.get(stage, 0) > 0:
            self._out_of_memory[stage] -= 1
            raise OutOfMemory
        return delay
