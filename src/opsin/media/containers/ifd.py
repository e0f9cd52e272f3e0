"""Image file directories: the tables of tags that TIFF files consist of, EXIF blocks start with and MPO files add.

Only tags with one whole number are of interest here; TIFF 6.0, section 2, and BigTIFF, where offsets have eight bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from opsin.media.containers import MAX_CHUNKS

_VALUES = {1: "B", 3: "H", 4: "I", 16: "Q"}  # BYTE, SHORT, LONG, LONG8


@dataclass(frozen=True, slots=True)
class Layout:
    """Byte order and widths, as ``struct`` names them."""

    order: str
    count: str
    offset: str
    value_bytes: int

    @property
    def entry_bytes(self) -> int:
        """Tag, type, number of values, and the value or where it is."""
        return 4 + 2 * self.value_bytes


_CLASSIC, _BIG = ("H", "I", 4), ("Q", "Q", 8)
_LAYOUTS = {
    b"II*\0": Layout("<", *_CLASSIC),
    b"MM\0*": Layout(">", *_CLASSIC),
    b"II+\0": Layout("<", *_BIG),
    b"MM\0+": Layout(">", *_BIG),
}


@dataclass(frozen=True, slots=True)
class Directory:
    """Its tags that hold one whole number, where the next directory is (0: nowhere), and whether nothing was cut."""

    values: dict[int, int]
    next_at: int
    is_whole: bool


def layout_of(data: bytes) -> Layout | None:
    """By the first four bytes; None if this is no TIFF."""
    return _LAYOUTS.get(data[:4])


def first_at(data: bytes, layout: Layout) -> int | None:
    """Offset of the first directory; None when the data ends before it is told."""
    position = layout.value_bytes  # behind the magic number, and BigTIFF's width of offsets
    if position + layout.value_bytes > len(data):
        return None
    return _unpack(data, position, layout.order + layout.offset)


def read_directory(data: bytes, position: int, layout: Layout, wanted: frozenset[int]) -> Directory | None:
    """The directory at ``position`` as far as the data goes; None when not even its length is there.

    Only the first MAX_CHUNKS entries are looked at, and none when no tag is ``wanted``: directories may overlap.
    """
    entries_at = position + struct.calcsize(layout.order + layout.count)
    if entries_at > len(data):
        return None
    declared = _unpack(data, position, layout.order + layout.count)
    present = min(declared, (len(data) - entries_at) // layout.entry_bytes)
    end = entries_at + present * layout.entry_bytes
    values: dict[int, int] = {}
    last = entries_at + min(present, MAX_CHUNKS) * layout.entry_bytes if wanted else 0
    for entry in range(entries_at, last, layout.entry_bytes):
        tag, kind = struct.unpack_from(f"{layout.order}HH", data, entry)
        if tag in wanted and kind in _VALUES and tag not in values:
            values[tag] = _unpack(data, entry + 4 + layout.value_bytes, layout.order + _VALUES[kind])
    is_whole = present == declared and end + layout.value_bytes <= len(data)
    return Directory(values, _unpack(data, end, layout.order + layout.offset) if is_whole else 0, is_whole)


def _unpack(data: bytes, position: int, form: str) -> int:
    (number,) = struct.unpack_from(form, data, position)
    return int(number)
