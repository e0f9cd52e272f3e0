"""JPEG: segments up to the first scan (ISO 10918-1 annex B). Size from the frame header, orientation from APP1."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from itertools import islice

from opsin.media.containers import MAX_CHUNKS, exif
from opsin.media.containers.ifd import first_at, layout_of, read_directory
from opsin.media.types import HeaderSoFar, ImageFormat, ImageHeader
from opsin.media.undecodable import Failure, undecodable
from opsin.vision.plan import Size

_MARKER = re.compile(rb"\xff[^\x00\xff]")  # decoders skip fill bytes and junk between segments, so the walk does too
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0-15 without DHT, JPG, DAC
_BARE_MARKERS = frozenset(range(0xD0, 0xD9)) | {0x01}  # RST0-7, SOI, TEM: no length follows
_EOI, _SOS, _APP1, _APP2 = 0xD9, 0xDA, 0xE1, 0xE2
_SCAN = re.compile(rb"\xff\xda")  # pixels hold no such bytes: in them 0xff is followed by 0
_MAX_SCANS = 100
"""A progressive picture has about 10. Each one visits every pixel, however few bytes it has: at 25 Mpx 100 took 3 s,
and 1000 come in 220 KB."""
_MPF_PREFIX = b"MPF\0"
_NUM_PICTURES = 0xB001


def read(data: bytes) -> Iterator[HeaderSoFar]:
    """The header of a JPEG file. A file with several pictures (MPO) counts as its first; ``frames`` is their number."""
    size: Size | None = None
    orientation: int | None = None
    frames = 1
    for marker, segment in _segments(data):
        if marker in _FRAME_MARKERS:
            if size is not None:
                raise undecodable(Failure.UNDECODABLE)
            size = _frame_size(segment)
            header = ImageHeader(ImageFormat.JPEG, size, orientation or 1, frames)
            yield HeaderSoFar(header, is_settled=orientation is not None)
        elif marker == _APP1 and orientation is None and segment.startswith(exif.EXIF_PREFIX):
            orientation = exif.orientation(segment)
        elif marker == _APP2 and segment.startswith(_MPF_PREFIX):
            frames = _num_pictures(segment.removeprefix(_MPF_PREFIX))
    if size is None:
        raise undecodable(Failure.UNDECODABLE)
    # Not count(), which takes three times as long over what is no marker.
    if sum(1 for _ in islice(_SCAN.finditer(data), _MAX_SCANS + 1)) > _MAX_SCANS:
        raise undecodable(Failure.UNSUPPORTED)
    yield HeaderSoFar(ImageHeader(ImageFormat.JPEG, size, orientation or 1, frames), is_settled=True)


def _num_pictures(index: bytes) -> int:
    """Of an MPO's index (CIPA DC-007): phones put a depth map or gain map behind a photograph that way."""
    layout = layout_of(index)
    position = first_at(index, layout) if layout else None
    if layout is None or position is None:
        return 1
    directory = read_directory(index, position, layout, frozenset({_NUM_PICTURES}))
    return max(1, directory.values.get(_NUM_PICTURES, 1)) if directory else 1


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
