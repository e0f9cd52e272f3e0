"""BMP: the size in one of its headers (Windows GDI, BITMAPFILEHEADER and what follows it)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from opsin.media.types import HeaderSoFar, ImageFormat, ImageHeader
from opsin.media.undecodable import Failure, undecodable
from opsin.vision.plan import Size

_FILE_HEADER_BYTES = 14
_OS2_HEADER_BYTES = 12
_HEADER_BYTES = (40, 52, 56, 64, 108, 124)


def read(data: bytes) -> Iterator[HeaderSoFar]:
    """The header of a BMP file. A negative height means rows from top to bottom."""
    (length,) = _unpack("<I", data, _FILE_HEADER_BYTES)
    if length == _OS2_HEADER_BYTES:
        width, height = _unpack("<HH", data, _FILE_HEADER_BYTES + 4)
    elif length in _HEADER_BYTES:
        width, height = _unpack("<ii", data, _FILE_HEADER_BYTES + 4)
    else:
        raise undecodable(Failure.UNDECODABLE)
    if width < 0:
        raise undecodable(Failure.UNDECODABLE)
    yield HeaderSoFar(ImageHeader(ImageFormat.BMP, Size(width, abs(height)), orientation=1, frames=1), is_settled=True)


def _unpack(form: str, data: bytes, position: int) -> tuple[int, ...]:
    if position + struct.calcsize(form) > len(data):
        raise undecodable(Failure.TRUNCATED)
    return struct.unpack_from(form, data, position)
