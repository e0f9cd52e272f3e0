"""Says in the log when a model becomes ready, and when it is no longer. Knows no engine's reasons for either."""

from __future__ import annotations

import asyncio
import logging

from opsin.gateway.served import ServedModels
from opsin.telemetry.logs import fields

logger = logging.getLogger(__name__)

_LOOK_S = 1.0


class ReadinessLog:
    """Of all models that are served, from ``start`` to ``close``; what lasts less than a second may go unseen."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models
        self._ready = dict[str, bool]()
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Looks at once, then every second."""
        self._looking = asyncio.create_task(self._keep_looking())

    async def close(self) -> None:
        """Safe to call twice, and without ``start``."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await asyncio.wait((looking,))

    async def _keep_looking(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(_LOOK_S)

    def _look(self) -> None:
        before = self._ready
        reasons = self._models.unready_reasons()
        self._ready = {model: reason is None for model, reason in reasons.items()}
        for model, is_ready in self._ready.items():
            if before.get(model) is not is_ready:
                level = logging.INFO if is_ready else logging.WARNING
                state = "ready" if is_ready else "not ready"
                logger.log(level, "%s", fields(model=model, state=state, reason=reasons[model]))
