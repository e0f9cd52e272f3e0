"""Server-sent events, sending side."""

from __future__ import annotations

DONE = b"data: [DONE]\n\n"
COMMENT = b": waiting\n\n"
"""A line that clients skip."""


def event(data: bytes) -> bytes:
    """One ``data:`` event. ``data`` is JSON and therefore holds no line break."""
    return b"data: " + data + b"\n\n"
