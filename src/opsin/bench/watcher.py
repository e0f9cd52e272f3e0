"""Whoever looks on while a run goes: see :mod:`opsin.bench.live`."""

from __future__ import annotations

from typing import Protocol

from opsin.bench.record import Record


class Watcher(Protocol):
    """Told of everything as it happens, between other things: it has to be quick."""

    def preparing(self, done: int, total: int) -> None:
        """So many pictures are made."""
        ...

    def began(self, title: str, total: int) -> None:
        """A phase of so many requests begins."""
        ...

    def saw(self, record: Record) -> None:
        """One request is over."""
        ...


class Nobody:
    """Looks on and does nothing."""

    def preparing(self, done: int, total: int) -> None:
        """See Watcher."""

    def began(self, title: str, total: int) -> None:
        """See Watcher."""

    def saw(self, record: Record) -> None:
        """See Watcher."""
