"""Who was really dialled, by the interpreter's own account: nothing that connects can pass it by."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

_recorders: list[list[str]] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _recorders and event == "socket.connect":
        address: Any = arguments[1]
        host = str(address[0]) if isinstance(address, tuple) else str(address)  # pyright: ignore[reportUnknownArgumentType] anything
        for recorder in _recorders:
            recorder.append(host)


sys.addaudithook(_hook)


@contextmanager
def dialled() -> Generator[list[str]]:
    """The addresses of all connections that this process asks for inside the block."""
    recorder: list[str] = []
    _recorders.append(recorder)
    try:
        yield recorder
    finally:
        _recorders.remove(recorder)
