"""Compares what was planned with what the engine counted. A difference means that one of the two is wrong.

A plan is for one model at one engine: another engine may count the same picture otherwise. Knows no request.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from opsin.engine.api import Usage
from opsin.gateway.names import ModelNames
from opsin.telemetry.logs import fields
from opsin.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlannedTokens:
    """Of one prompt. ``prompt_tokens`` is None where its text was only estimated."""

    image_tokens: int
    prompt_tokens: int | None


class PlanCheck:
    """Counts and logs the differences of one model."""

    def __init__(self, names: ModelNames, engine: str, metrics: Metrics) -> None:
        self._names = names
        self._engine = engine
        self._metrics = metrics

    def compare(self, request_id: str, planned: PlannedTokens, usage: Usage) -> None:
        """By image tokens where the engine tells them, else by the whole prompt; without either there is no telling."""
        if usage.image_tokens is not None:
            self._compare(request_id, "image_tokens", planned.image_tokens, usage.image_tokens)
        elif usage.prompt_tokens is not None and planned.prompt_tokens is not None:
            self._compare(request_id, "prompt_tokens", planned.prompt_tokens, usage.prompt_tokens)

    def _compare(self, request_id: str, what: str, planned: int, counted: int) -> None:
        if planned == counted:
            return
        model = self._names.default
        self._metrics.plan_mismatch.labels(model=model, engine=self._engine).inc()
        logger.warning(
            "%s",
            fields(
                request_id=request_id,
                plan_mismatch=what,
                planned=planned,
                counted=counted,
                model=model,
                engine=self._engine,
            ),
        )
