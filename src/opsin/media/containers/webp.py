"""WebP: RIFF chunks (RFC 9649). The canvas of VP8X, else the size in the VP8 or VP8L bitstream header."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from opsin.media.containers import MAX_CHUNKS, exif
from opsin.media.types import HeaderSoFar, ImageFormat, ImageHeader
from opsin.media.undecodable import Failure, undecodable
from opsin.vision.plan import Size

_FIRST_CHUNK = 12
_SIZE_BYTES = 10  # of the first chunk, which tell the size
_EXIF_FLAG, _ANIMATION_FLAG = 0x08, 0x02
_VP8_START_CODE = b"\x9d\x01\x2a"
_VP8L_SIGNATURE = 0x2F


def read(data: bytes) -> Iterator[HeaderSoFar]:
    """The header of a WebP file. As in libwebp, EXIF and frames count only when VP8X announces them."""
    size: Size | None = None
    flags, orientation, frames = 0, 1, 0
    for kind, start, end in _chunks(data):
        if size is None:
            size = _declared_size(kind, data[start : min(end, start + _SIZE_BYTES)])
            flags = data[start] if kind == b"VP8X" else 0
            yield HeaderSoFar(ImageHeader(ImageFormat.WEBP, size, 1, 1), is_settled=not flags & _EXIF_FLAG)
        elif kind == b"EXIF" and flags & _EXIF_FLAG:
            orientation = exif.orientation(data[start:end])
        elif kind == b"ANMF" and flags & _ANIMATION_FLAG:
            frames += 1
    if size is None:
        raise undecodable(Failure.UNDECODABLE)
    yield HeaderSoFar(ImageHeader(ImageFormat.WEBP, size, orientation, max(1, frames)), is_settled=True)


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Type, start and end of the content of each chunk inside the RIFF size; bytes after it are ignored.

    Of a file that was cut the last one may reach beyond its end, but not the bytes of a first one that tell the size.
    """
    if len(data) < _FIRST_CHUNK:
        raise undecodable(Failure.TRUNCATED)
    (riff_size,) = struct.unpack_from("<I", data, 4)
    riff_end = 8 + riff_size
    position = _FIRST_CHUNK
    for _ in range(MAX_CHUNKS):
        if position + 8 > riff_end:
            break
        if position + 8 > len(data):
            raise undecodable(Failure.TRUNCATED)
        kind, length = struct.unpack_from("<4sI", data, position)
        start, end = position + 8, position + 8 + length
        if end > riff_end:
            raise undecodable(Failure.UNDECODABLE)
        if min(end, start + _SIZE_BYTES) > len(data):
            raise undecodable(Failure.TRUNCATED)
        yield kind, start, end
        position = end + (length & 1)
    else:
        raise undecodable(Failure.UNDECODABLE)
    if riff_end > len(data):
        raise undecodable(Failure.TRUNCATED)


def _declared_size(kind: bytes, content: bytes) -> Size:
    """``content`` is the first ten bytes of the first chunk."""
    if kind == b"VP8X" and len(content) == 10:
        return Size(_u24(content, 4) + 1, _u24(content, 7) + 1)
    if kind == b"VP8 " and len(content) == 10 and content[3:6] == _VP8_START_CODE:
        width, height = struct.unpack_from("<HH", content, 6)
        return Size(width & 0x3FFF, height & 0x3FFF)  # the upper two bits are a scale that decoders ignore
    if kind == b"VP8L" and len(content) >= 5 and content[0] == _VP8L_SIGNATURE:
        (bits,) = struct.unpack_from("<I", content, 1)
        return Size((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    raise undecodable(Failure.UNDECODABLE)


def _u24(content: bytes, position: int) -> int:
    return int.from_bytes(content[position : position + 3], "little")
