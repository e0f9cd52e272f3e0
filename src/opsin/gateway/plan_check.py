"""Compares what was planned with what the engine counted. A difference means that one of the two is wrong.

A plan is for one model at one engine: another engine may count the same picture otherwise. Knows no request.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from opsin.engine.api import Usage
from opsin.gateway.names import ModelNames
from opsin.telemetry.logs import fields
from opsin.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlannedTokens:
    """Of one prompt. ``prompt_tokens`` is None where its text was only estimated."""

    image_tokens: int
    marker_tokens: int
    prompt_tokens: int | None


class PlanCheck:
    """Counts and logs the differences of one model."""

    def __init__(self, names: ModelNames, engine: str, metrics: Metrics) -> None:
        self._names = names
        self._engine = engine
        self._metrics = metrics

    def compare(self, request_id: str, planned: PlannedTokens, usage: Usage) -> Usage:
        """By image tokens where the engine tells them, else by placeholders, else by the whole prompt.

        Returns the usage, with the image tokens where a placeholder that is as long as planned vouches for them.
        """
        if usage.image_tokens is not None:
            self._same(request_id, "image_tokens", planned.image_tokens, usage.image_tokens)
        elif usage.placeholder_tokens is not None:
            if self._fits(request_id, planned, usage.placeholder_tokens):
                return replace(usage, image_tokens=planned.image_tokens)
        elif usage.prompt_tokens is not None and planned.prompt_tokens is not None:
            self._same(request_id, "prompt_tokens", planned.prompt_tokens, usage.prompt_tokens)
        return usage

    def _fits(self, request_id: str, planned: PlannedTokens, counted: int) -> bool:
        """vLLM takes markers for the picture's where the processor makes them (Idefics3), not where the template does
        (Qwen-VL)."""
        if counted == planned.image_tokens:
            return True
        whole = planned.image_tokens + planned.marker_tokens
        return self._same(request_id, "placeholder_tokens", whole, counted)

    def _same(self, request_id: str, what: str, planned: int, counted: int) -> bool:
        if planned == counted:
            return True
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
        return False
