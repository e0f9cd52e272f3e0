"""PNG and APNG: chunks from IHDR to IEND (W3C PNG, third edition). Bytes after IEND are nobody's and are ignored."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from opsin.media.containers import MAX_CHUNKS, exif
from opsin.media.types import HeaderSoFar, ImageFormat, ImageHeader
from opsin.media.undecodable import Failure, undecodable
from opsin.vision.plan import Size

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY, _RGB, _PALETTE, _GREY_ALPHA, _RGBA = 0, 2, 3, 4, 6  # colour types
_SAMPLES = {_GREY: 1, _RGB: 3, _PALETTE: 1, _GREY_ALPHA: 2, _RGBA: 4}
_ONE_PASS = ((0, 0, 1, 1),)
_ADAM7_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
_INFLATE_STEP_BYTES = 2**20

Transparency = int | tuple[int, int, int] | bytes
"""A grey level, a colour, or one alpha per palette entry; in 8 bits, but a level of 16-bit grey in 16."""


def read(data: bytes) -> Iterator[HeaderSoFar]:
    """The header of a PNG file. eXIf may come after the pixels, so the walk goes to IEND."""
    size: Size | None = None
    orientation, frames, has_pixels = 1, 1, False
    for kind, start, end in _chunks(data):
        if size is None:
            size = _declared_size(data, kind, start, end)
            yield HeaderSoFar(ImageHeader(ImageFormat.PNG, size, orientation, frames), is_settled=False)
        elif kind == b"eXIf":
            orientation = exif.orientation(data[start:end])
            yield HeaderSoFar(ImageHeader(ImageFormat.PNG, size, orientation, frames), is_settled=False)
        elif kind == b"acTL" and not has_pixels and end - start >= 4:
            frames = max(1, int.from_bytes(data[start : start + 4], "big"))
        elif kind == b"IDAT":
            has_pixels = True
    if size is None or not has_pixels:
        raise undecodable(Failure.UNDECODABLE)
    yield HeaderSoFar(ImageHeader(ImageFormat.PNG, size, orientation, frames), is_settled=True)


def has_good_checksums(data: bytes) -> bool:
    """Whether the CRC of every critical chunk is right. Pillow does not check IDAT: damage shows as colours."""
    view = memoryview(data)
    return all(
        zlib.crc32(view[start - 4 : end]) == int.from_bytes(view[end : end + 4], "big")
        for kind, start, end in _chunks(data)
        if kind[:1].isupper()
    )


def has_all_rows(data: bytes) -> bool:
    """Whether IDAT inflates to as many bytes as IHDR declares. Pillow leaves rows that are missing black."""
    missing = _filtered_bytes(data)
    inflater = zlib.decompressobj()
    for kind, start, end in _chunks(data):
        pending = data[start:end] if kind == b"IDAT" else b""
        while pending and missing > 0:
            missing -= len(inflater.decompress(pending, _INFLATE_STEP_BYTES))
            pending = inflater.unconsumed_tail
    return missing <= 0 or missing <= len(inflater.flush())


def is_interlaced(data: bytes) -> bool:
    """Whether rows come in Adam7's order."""
    return data[28] == 1


def transparency(data: bytes) -> Transparency | None:
    """What tRNS makes transparent, scaled as Pillow scales the samples; None without tRNS.

    Pillow's own value lies beside arbitrary text chunks in one dict, and is unscaled below 8 bits. A 16-bit colour is
    compared by its high bytes, because that is what is left of the samples.
    """
    chunk = next((data[start:end] for kind, start, end in _chunks(data) if kind == b"tRNS"), None)
    if chunk is None:
        return None
    depth, colour_type = data[24], data[25]
    if colour_type == _PALETTE:
        return chunk
    if colour_type == _GREY and len(chunk) >= 2:
        level = int.from_bytes(chunk[:2], "big")
        return level if depth == 16 else level * 255 // ((1 << depth) - 1)
    if colour_type == _RGB and len(chunk) >= 6:
        red, green, blue = (value >> 8 if depth == 16 else value & 0xFF for value in struct.unpack(">3H", chunk[:6]))
        return red, green, blue
    return None


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Type, start and end of the content of each chunk before IEND."""
    position = len(SIGNATURE)
    for _ in range(MAX_CHUNKS):
        if position + 12 > len(data):
            raise undecodable(Failure.TRUNCATED)
        length, kind = struct.unpack_from(">I4s", data, position)
        start, end = position + 8, position + 8 + length
        if end + 4 > len(data):
            raise undecodable(Failure.TRUNCATED)
        if kind == b"IEND":
            return
        yield kind, start, end
        position = end + 4
    raise undecodable(Failure.UNDECODABLE)


def _filtered_bytes(data: bytes) -> int:
    """Bytes of all rows with their filter bytes; IHDR lies at a fixed place."""
    width, height, depth, colour_type = struct.unpack_from(">IIBB", data, 16)
    total = 0
    for left, top, step_x, step_y in _ADAM7_PASSES if is_interlaced(data) else _ONE_PASS:
        columns, rows = -((left - width) // step_x), -((top - height) // step_y)
        if columns > 0 and rows > 0:
            total += rows * (1 + (columns * depth * _SAMPLES[colour_type] + 7) // 8)
    return total


def _declared_size(data: bytes, kind: bytes, start: int, end: int) -> Size:
    """Width and height of IHDR, which must come first."""
    if kind != b"IHDR" or end - start != 13:
        raise undecodable(Failure.UNDECODABLE)
    width, height = struct.unpack_from(">II", data, start)
    return Size(width, height)
