"""A name service whose answers are scripted, for whoever takes a ``Lookup``: rebinding, mixed answers, silence."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping, Sequence

Answer = Sequence[str]


class ScriptedDns:
    """Each lookup of a name takes its next answer, and the last one stays. An empty answer, or no name, is a failure.

    ``hanging`` names answer only when ``release`` is called. Thread-safe.
    """

    def __init__(self, answers: Mapping[str, Sequence[Answer]], *, hanging: frozenset[str] = frozenset()) -> None:
        self._answers = {name: list(several) for name, several in answers.items()}
        self._hanging = hanging
        self._released = threading.Event()
        self._lock = threading.Lock()
        self.asked: list[str] = []  # names, in the order of the lookups

    def __call__(self, name: str) -> Answer:
        """The addresses of ``name``. Raises OSError as the system does."""
        with self._lock:
            self.asked.append(name)
            several = self._answers.get(name, [()])
            answer = several.pop(0) if len(several) > 1 else several[0]
        if name in self._hanging:
            self._released.wait()
        if not answer:
            raise socket.gaierror(socket.EAI_NONAME, "scripted: no such name")
        return answer

    def release(self) -> None:
        """Lets hanging lookups end."""
        self._released.set()
