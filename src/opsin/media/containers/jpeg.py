"""JPEG: segments up to the first scan (ISO 10918-1 annex B). Size from the frame header, orientation from APP1."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from opsin.media.containers import MAX_CHUNKS, exif
from opsin.media.types import ImageFormat, ImageHeader
from opsin.media.undecodable import Failure, undecodable
from opsin.vision.plan import Size

_MARKER = re.compile(rb"\xff[^\x00\xff]")  # decoders skip fill bytes and junk between segments, so the walk does too
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0-15 without DHT, JPG, DAC
_BARE_MARKERS = frozenset(range(0xD0, 0xD9)) | {0x01}  # RST0-7, SOI, TEM: no length follows
_EOI, _SOS, _APP1 = 0xD9, 0xDA, 0xE1


def read(data: bytes) -> ImageHeader:
    """The header of a JPEG file. A file with several pictures (MPO) counts as its first."""
    size: Size | None = None
    orientation: int | None = None
    for marker, segment in _segments(data):
        if marker in _FRAME_MARKERS:
            if size is not None:
                raise undecodable(Failure.UNDECODABLE)
            size = _frame_size(segment)
        elif marker == _APP1 and orientation is None and segment.startswith(exif.EXIF_PREFIX):
            orientation = exif.orientation(segment)
    if size is None:
        raise undecodable(Failure.UNDECODABLE)
    return ImageHeader(ImageFormat.JPEG, size, orientation or 1, frames=1)


def _segments(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Marker and content of each segment before the first scan."""
    position = 2
    for _ in range(MAX_CHUNKS):
        found = _MARKER.search(data, position)
        if found is None:
            raise undecodable(Failure.TRUNCATED)
        marker, position = data[found.start() + 1], found.end()
        if marker in (_SOS, _EOI):
            return
        if marker in _BARE_MARKERS:
            continue
        end = position + _length(data, position)
        yield marker, data[position + 2 : end]
        position = end
    raise undecodable(Failure.UNDECODABLE)


def _length(data: bytes, position: int) -> int:
    """Length of the segment at ``position``, its own two bytes included."""
    if position + 2 > len(data):
        raise undecodable(Failure.TRUNCATED)
    (length,) = struct.unpack_from(">H", data, position)
    if length < 2:
        raise undecodable(Failure.UNDECODABLE)
    if position + length > len(data):
        raise undecodable(Failure.TRUNCATED)
    return length


def _frame_size(segment: bytes) -> Size:
    """Lines and samples per line follow the precision byte. Height 0 (told later by DNL) is refused."""
    if len(segment) < 6:
        raise undecodable(Failure.UNDECODABLE)
    height, width = struct.unpack_from(">HH", segment, 1)
    return Size(width, height)
