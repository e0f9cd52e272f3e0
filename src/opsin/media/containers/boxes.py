"""Boxes of the ISO base media file format, of which HEIC and AVIF consist (ISO 14496-12, section 4.2)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from opsin.media.containers import MAX_CHUNKS
from opsin.media.undecodable import Failure, undecodable

_HEADER_BYTES, _LARGE_HEADER_BYTES = 8, 16
_LARGE, _TO_THE_END = 1, 0  # sizes that mean something else
FULL_BOX_BYTES = 4
"""Version and flags, where a box has them."""


@dataclass(frozen=True, slots=True)
class Box:
    """Its type, and its content as offsets into the file."""

    kind: bytes
    start: int
    end: int


def boxes(data: bytes, start: int, end: int) -> Iterator[Box]:
    """The boxes between two offsets, at most MAX_CHUNKS of them.

    A box that reaches beyond the end of the file means that it was cut; one beyond the box around it is damage.
    """
    position = start
    for _ in range(MAX_CHUNKS):
        if position == end:
            return
        box = _box(data, position, end)
        yield box
        position = box.end
    raise undecodable(Failure.UNDECODABLE)


def children(data: bytes, box: Box, skipped_bytes: int = 0) -> Iterator[Box]:
    """The boxes inside ``box``, behind so many bytes of its own."""
    return boxes(data, box.start + skipped_bytes, box.end) if box.start + skipped_bytes <= box.end else iter(())


def find(found: Iterator[Box], kind: bytes) -> Box | None:
    """The first one of a kind."""
    return next((box for box in found if box.kind == kind), None)


def number(data: bytes, position: int, num_bytes: int, end: int) -> int:
    """An unsigned number that has to end before ``end``."""
    if position + num_bytes > end:
        raise undecodable(Failure.UNDECODABLE)
    return int.from_bytes(data[position : position + num_bytes], "big")


def _box(data: bytes, position: int, end: int) -> Box:
    failure = Failure.TRUNCATED if end == len(data) else Failure.UNDECODABLE
    if position + _HEADER_BYTES > end:
        raise undecodable(failure)
    size, kind = struct.unpack_from(">I4s", data, position)
    start = position + _HEADER_BYTES
    if size == _LARGE:
        start = position + _LARGE_HEADER_BYTES
        size = number(data, position + _HEADER_BYTES, 8, end)
    elif size == _TO_THE_END:
        size = end - position
    if position + size > end:
        raise undecodable(failure)
    if position + size < start:
        raise undecodable(Failure.UNDECODABLE)
    return Box(kind, start, position + size)
