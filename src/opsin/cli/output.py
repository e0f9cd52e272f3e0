"""Standard output of a command, whose failures are told from those of other files."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO, cast


class OutputError(Exception):
    """What a command prints cannot be written. No OSError: whoever handles those of a picture or a folder means others.

    The message is the system's reason; empty where the reader has seen enough, as ``head`` does.
    """


@contextmanager
def guarded() -> Generator[None]:
    """What is printed in this block is written when it ends. Raises OutputError; then nothing more is ever written."""
    if sys.stdout is None:  # closed by whoever started us: nothing is printed
        yield
        return
    stream = sys.stdout
    try:
        with redirect_stdout(cast("TextIO", _Guarded(stream))):
            yield
            sys.stdout.flush()
    except (OutputError, BrokenPipeError) as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # else Python complains at its end
        raise OutputError(*error.args if isinstance(error, OutputError) else ()) from None


class _Guarded:
    """A stream as it is, but for how its writes fail. A broken pipe stays what it is: rich knows it too."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with _named():
            return self._stream.write(text)

    def flush(self) -> None:
        with _named():
            self._stream.flush()


@contextmanager
def _named() -> Generator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(os.strerror(error.errno or 0)) from None
