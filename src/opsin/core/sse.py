"""Server-sent events out of bytes that arrive in any pieces.

Follows https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation, for the one field
that chat streams use: ``data``. Works on bytes, so that a character split over two reads is whole again when its line
is, and U+2028 or U+0085 inside a line end nothing (``str.splitlines`` would). Knows nothing of JSON, chat or who reads.
"""

from __future__ import annotations

import re

MAX_EVENT_BYTES = 16 * 2**20
"""An event larger than this is no token delta; it is refused before it fills the memory."""

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"


class EventTooLarge(Exception):
    """One event grew over MAX_EVENT_BYTES before it ended."""


class SseParser:
    """Feeds on reads of one response and gives the data of each finished event, in order.

    Whatever the cuts between reads, the events are the same. An event that the stream ends before its empty line is
    not given, as the standard asks: its data may be half.
    """

    def __init__(self) -> None:
        self._line: list[bytes] = []  # pieces of the line that has not ended yet
        self._data: list[bytes] = []  # data lines of the event that has not ended yet
        self._held_bytes = 0  # in both
        self._after_cr = False  # the last read ended in CR: an LF that follows belongs to it
        self._first_line = True

    def feed(self, read: bytes) -> list[bytes]:
        """The data of every event that this read completes. Raises EventTooLarge."""
        if self._after_cr and read:
            read = read.removeprefix(b"\n")
            self._after_cr = False
        if not read:
            return []
        self._after_cr = read.endswith(b"\r")
        *ended, rest = _LINE_END.split(read) if b"\r" in read else read.split(b"\n")
        events: list[bytes] = []
        for piece in ended:
            line = self._ended_line(piece) if self._line or self._first_line else piece
            if line.startswith(b"data:"):
                self._hold(self._data, line[6:] if line.startswith(b" ", 5) else line[5:])
            elif line == b"data":
                self._hold(self._data, b"")
            elif not line and (event := self._end_event()) is not None:
                events.append(event)
        if rest:
            self._hold(self._line, rest)
        return events

    def _ended_line(self, piece: bytes) -> bytes:
        self._held_bytes -= sum(map(len, self._line))
        line = b"".join((*self._line, piece))
        self._line.clear()
        if self._first_line:
            line = line.removeprefix(_BOM)
            self._first_line = False
        return line

    def _end_event(self) -> bytes | None:
        event = b"\n".join(self._data) if self._data else None
        self._data.clear()
        self._held_bytes = 0
        return event

    def _hold(self, pieces: list[bytes], piece: bytes) -> None:
        self._held_bytes += len(piece)
        if self._held_bytes > MAX_EVENT_BYTES:
            raise EventTooLarge
        pieces.append(piece)
