"""What engines tell of their replicas and of their stages, as metrics show it."""

from __future__ import annotations

from collections.abc import Mapping

from opsin.engine.api import EngineStats, ReplicaState
from opsin.telemetry.engine_stages import EngineStageSample
from opsin.telemetry.replicas import ReplicaSample

_STATES = tuple(ReplicaState)


def replica_samples(by_model: Mapping[str, EngineStats]) -> tuple[ReplicaSample, ...]:
    """Of all models."""
    return tuple(
        ReplicaSample(
            model=model,
            replica=one.name,
            state=one.state,
            states=_STATES,
            requests=one.requests,
            visual_tokens=one.visual_tokens,
            ejections=one.ejections,
            retries=one.retries,
        )
        for model, stats in by_model.items()
        for one in stats.replicas
    )


def engine_stage_samples(by_model: Mapping[str, EngineStats]) -> tuple[EngineStageSample, ...]:
    """Of all models."""
    return tuple(
        EngineStageSample(model=model, source=one.source, stage=one.stage, seconds=one.seconds, requests=one.requests)
        for model, stats in by_model.items()
        for one in stats.stage_sums
    )
