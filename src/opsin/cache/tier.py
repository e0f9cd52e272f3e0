"""What every tier is: a place that keeps values of pictures, scope by scope.

A picture is a record of its scope; what is kept of it are the record's fields. So a picture is deleted by deleting its
record, whatever was made of it. Tiers know neither tenants nor digests, only opaque names.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from opsin.core.erasure import PurgeOutcome


class Kind(StrEnum):
    """What a value is."""

    MEDIA = "media"  # the bytes of a picture from a URL
    RENDER = "render"  # tiles
    SCALED = "scaled"  # written anew, smaller
    VERIFIED = "verified"  # that it decodes; no bytes
    FILE = "file"  # uploaded


@dataclass(frozen=True, slots=True)
class Address:
    """Where a value is; ``record`` and ``field`` are of ``[0-9a-z.-]`` only."""

    scope: str
    record: str
    field: str


@dataclass(frozen=True, slots=True)
class Value:
    """``head`` says what ``data`` is, in a few bytes of msgpack."""

    head: bytes
    data: bytes

    @property
    def size_bytes(self) -> int:
        """Both."""
        return len(self.head) + len(self.data)


class TierError(Exception):
    """A tier cannot be used just now, or what it returned is none of our values. Never reaches a client."""

    @property
    def reason(self) -> str:
        """For the operator: also what the tier itself said."""
        return f"{self}: {self.__cause__}" if self.__cause__ is not None else str(self)


class Tier(Protocol):
    """A tier refuses what a tombstone covers. Every method but ``close`` may raise TierError."""

    name: str
    is_shared: bool
    """With other gateways: whoever erases there erases for all."""

    async def get(self, at: Address) -> Value | None:
        """None when it is not there, or too old."""
        ...

    async def put(self, at: Address, value: Value, ttl_s: float) -> bool:
        """Whether it is kept. Only entries of the same scope make room for it."""
        ...

    async def fields(self, scope: str, record: str) -> dict[str, Value]:
        """All of a record; what is too old of it is dropped."""
        ...

    async def drop(self, at: Address) -> None:
        """Forgets one field."""
        ...

    async def purge(self, scope: str, record: str | None) -> PurgeOutcome:
        """Erases a record, or all of a scope."""
        ...

    def alone(self, scope: str) -> AbstractAsyncContextManager[None]:
        """Keeps other processes out that want to be alone with this scope too; nobody else."""
        ...

    async def expire(self) -> None:
        """Removes what is too old."""
        ...

    async def lift(self, scope: str, record: str) -> None:
        """Takes a tombstone of the tier's own away."""
        ...

    async def close(self) -> None:
        """Gives back what the tier holds of the system. Safe to call twice."""
        ...
