"""The names under which clients may ask, and what ``/v1/models`` says about them."""

from __future__ import annotations

from opsin.core.errors import Code, NotFound
from opsin.protocol.response import ModelList, ModelObject, now


class ServedModels:
    """One model under one or more names; the first one is the default."""

    def __init__(self, names: tuple[str, ...], *, root: str, revision: str | None, max_model_len: int | None) -> None:
        self._created = now()
        self._names = names
        self._root = root
        self._revision = revision
        self._max_model_len = max_model_len

    def adopt(self, name: str, max_model_len: int | None) -> None:
        """An upstream engine learned the model's real name and limit; names that the operator chose stay."""
        self._names = self._names or (name,)
        self._root = name
        self._max_model_len = max_model_len

    @property
    def names(self) -> tuple[str, ...]:
        """The names that clients may ask for; without a choice of the operator, the model's own."""
        return self._names or (self._root,)

    @property
    def default(self) -> str:
        """The first name."""
        return self.names[0]

    def check(self, name: str | None) -> str:
        """The name to answer under. Raises NotFound for one that is not served."""
        if name is None or name in self.names:
            return name or self.default
        raise NotFound(
            f"there is no such model here; served: {', '.join(self.names)}",
            code=Code.MODEL_NOT_FOUND,
            param="model",
        )

    def get(self, name: str) -> ModelObject:
        """One model. Raises NotFound."""
        return ModelObject(self.check(name), self._created, self._revision, self._root, self._max_model_len)

    def all(self) -> ModelList:
        """Every name."""
        return ModelList([self.get(name) for name in self.names])
