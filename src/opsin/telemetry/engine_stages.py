"""What remote engines tell of their stages over all their requests, by who told it: absent where none does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import SummaryMetricFamily
from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStageSample:
    """One stage of one model's engine."""

    model: str
    source: str
    stage: str
    seconds: float
    requests: int


class EngineStageCollector(Collector):
    """Shows what it was told last."""

    def __init__(self) -> None:
        self.samples: tuple[EngineStageSample, ...] = ()

    def collect(self) -> Iterator[SummaryMetricFamily]:
        """See prometheus_client."""
        if not self.samples:
            return
        family = SummaryMetricFamily(
            "opsin_engine_stage_seconds",
            "A stage by the engine's own histogram, over all its requests",
            labels=("model", "source", "stage"),
        )
        for one in self.samples:
            family.add_metric((one.model, one.source, one.stage), one.requests, one.seconds)
        yield family
