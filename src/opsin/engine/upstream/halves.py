"""Characters beyond U+FFFF, which JSON may write as two escapes, and which some servers send in two events.

A half alone is no text: no decoder reads it, and no client could show it.
"""

from __future__ import annotations

import re

_ESCAPE = re.compile(
    rb"(?P<first>\\u[dD][89abAB][0-9a-fA-F]{2})(?P<second>\\u[dD][c-fC-F][0-9a-fA-F]{2})?"
    rb"|(?P<rest>\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|\\."
)
_UNKNOWN = rb"\ufffd"


class Halves:
    """Of one stream."""

    def __init__(self) -> None:
        self._first = b""

    def joined(self, event: bytes) -> bytes:
        """The event with whole characters only. A first half goes where the next second one is; others are U+FFFD."""
        return _ESCAPE.sub(self._whole, event) if rb"\u" in event else event

    def _whole(self, escape: re.Match[bytes]) -> bytes:
        if escape["first"] and not escape["second"]:
            given_up, self._first = self._first, escape["first"]
            return _UNKNOWN if given_up else b""
        if escape["rest"]:
            first, self._first = self._first, b""
            return first + escape["rest"] if first else _UNKNOWN
        return escape[0]
