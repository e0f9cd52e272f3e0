"""Lines out of what a program writes, bounded in length and in number. Knows no process and no logger."""

from __future__ import annotations

import re

MAX_LINE_CHARS = 1000
MAX_LINES_PER_S = 100

_END = re.compile(rb"[\r\n]+")  # progress bars go back to the start of their line
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_MAX_BYTES = 4 * MAX_LINE_CHARS


class Lines:
    """Cuts bytes into lines as they come. What is too long is cut off, what is too much is counted."""

    def __init__(self) -> None:
        self._rest = b""
        self._second = 0
        self._num_in_second = 0
        self._num_dropped = 0

    def feed(self, data: bytes, now: float) -> list[str]:
        """The whole lines in ``data``, which came at ``now`` (seconds), and a word for those that were dropped."""
        *whole, rest = _END.split(self._rest + data)
        self._rest = rest[:_MAX_BYTES]
        return self._within_rate([line for line in map(_text, whole) if line], int(now))

    def _within_rate(self, lines: list[str], second: int) -> list[str]:
        told: list[str] = []
        if second != self._second:
            if self._num_dropped:
                told.append(f"… {self._num_dropped} lines more")
            self._second, self._num_in_second, self._num_dropped = second, 0, 0
        room = MAX_LINES_PER_S - self._num_in_second
        self._num_in_second += len(lines[:room])
        self._num_dropped += len(lines[room:])
        return [*told, *lines[:room]]


def _text(line: bytes) -> str:
    text = _COLOUR.sub("", line[:_MAX_BYTES].decode(errors="replace")).rstrip()
    return text if len(text) <= MAX_LINE_CHARS else f"{text[:MAX_LINE_CHARS]}…"
