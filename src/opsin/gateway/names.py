"""The names under which clients may ask for one model, and what ``/v1/models`` says about it."""

from __future__ import annotations

from collections.abc import Iterator

from opsin.protocol.response import ModelObject, now


class ModelNames:
    """One model under one or more names; the first one is the default."""

    def __init__(self, names: tuple[str, ...], *, root: str, revision: str | None, max_model_len: int | None) -> None:
        self._created = now()
        self._names = names
        self._root = root
        self._revision = revision
        self._max_model_len = max_model_len

    def adopt(self, name: str, *, revision: str | None, max_model_len: int | None) -> None:
        """An upstream engine learned the model's real name and the like; names that the operator chose stay."""
        self._names = self._names or (name,)
        self._root = name
        self._revision = revision
        self._max_model_len = max_model_len

    def __iter__(self) -> Iterator[str]:
        """The names that clients may ask for; without a choice of the operator, the model's own."""
        return iter(self._names or (self._root,))

    @property
    def default(self) -> str:
        """The first name."""
        return next(iter(self))

    def objects(self) -> list[ModelObject]:
        """The model under each of its names."""
        return [self.object(name) for name in self]

    def object(self, name: str) -> ModelObject:
        """The model under one of its names."""
        return ModelObject(name, self._created, self._revision, self._root, self._max_model_len)
