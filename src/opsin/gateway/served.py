"""Every model of this server by its names, and what answers for each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from opsin.core.errors import Code, NotFound
from opsin.engine.api import Engine, EngineStats
from opsin.gateway.chat import ChatService
from opsin.gateway.count import CountService
from opsin.gateway.intake import Reading
from opsin.gateway.names import ModelNames
from opsin.protocol.request import model_of
from opsin.protocol.response import ModelList, ModelObject

_MAX_SHOWN = 100
"""Characters of a name that nobody serves."""


@dataclass(frozen=True, slots=True)
class Served:
    """One model: its names, what answers and what counts for it, and how its requests are read."""

    names: ModelNames
    chat: ChatService
    counts: CountService
    engine: Engine
    reading: Reading


class ServedModels:
    """The models, of which the first is the default. They may change while requests run: each keeps what it found."""

    def __init__(self, models: tuple[Served, ...]) -> None:
        self._models = models

    def __iter__(self) -> Iterator[Served]:
        return iter(self._models)

    @property
    def default(self) -> Served:
        """What answers where a request names no model."""
        return self._models[0]

    def replace(self, models: tuple[Served, ...]) -> None:
        """From the next request on these are served."""
        self._models = models

    def named(self, name: str | None) -> Served:
        """What answers under a name. Raises NotFound, which tells the name and those that are served."""
        if name is None:
            return self.default
        for served in self._models:
            if name in served.names:
                return served
        names = ", ".join(name for served in self._models for name in served.names)
        raise NotFound(
            f"the model `{_shown(name)}` does not exist here; served: {names}",
            code=Code.MODEL_NOT_FOUND,
            param="model",
        )

    def reading(self, body: bytes | bytearray) -> Reading:
        """How to read a body, which depends on the model that it names. Of one that names none here, the error does."""
        if len(self._models) > 1 and (name := model_of(body)) is not None:
            for served in self._models:
                if name in served.names:
                    return served.reading
        return self.default.reading

    def get(self, name: str) -> ModelObject:
        """One model. Raises NotFound."""
        return self.named(name).names.object(name)

    def all(self) -> ModelList:
        """Every name."""
        return ModelList([one for served in self._models for one in served.names.objects()])

    def unready_reasons(self) -> dict[str, str | None]:
        """By each model's first name; None for one that can be asked."""
        return {served.names.default: served.engine.unready_reason() for served in self._models}

    async def stats(self) -> dict[str, EngineStats]:
        """By each model's first name."""
        return {served.names.default: await served.engine.stats() for served in self._models}


def _shown(name: str) -> str:
    return name if len(name) <= _MAX_SHOWN else f"{name[:_MAX_SHOWN]}…"
