"""Pictures made on the spot: good ones of every kind, and bad ones with the status and code that each must get.

Nothing is downloaded, and nothing is built before ``data`` is read. The bad ones are bad under the default limits.
"""

from __future__ import annotations

import base64
import random
import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from PIL import Image

SIGNATURE = b"\x89PNG\r\n\x1a\n"
GREY, RGB, PALETTE = 0, 2, 3  # PNG colour types
_WIDTH, _HEIGHT = 64, 48


@dataclass(frozen=True, slots=True)
class GoodPicture:
    """A picture that must be accepted; ``size`` is upright."""

    name: str
    size: tuple[int, int]
    build: Callable[[], bytes]

    @property
    def data(self) -> bytes:
        return self.build()


@dataclass(frozen=True, slots=True)
class BadPicture:
    """A picture that must be refused with exactly this status and code."""

    name: str
    status: int
    code: str
    build: Callable[[], bytes]

    @property
    def data(self) -> bytes:
        return self.build()


def data_url(data: bytes, mime: str = "image/png") -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


# Building blocks


def encoded(picture: Image.Image, image_format: str, **options: Any) -> bytes:
    buffer = BytesIO()
    picture.save(buffer, image_format, **options)
    return buffer.getvalue()


def scene(mode: str = "RGB", size: tuple[int, int] = (_WIDTH, _HEIGHT)) -> Image.Image:
    """Not compressible to nothing, so that cutting it at any percentage cuts pixels."""
    noise = random.Random(size[0] * size[1]).randbytes(size[0] * size[1] * 3)
    return Image.frombytes("RGB", size, noise).convert(mode)


def exif_block(orientation: int, order: str = "<") -> bytes:
    """The smallest TIFF with an orientation tag."""
    start = b"II*\0" if order == "<" else b"MM\0*"
    return start + struct.pack(f"{order}IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def ihdr(width: int, height: int, depth: int = 8, colour_type: int = RGB) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0))


def idat(rows: Iterable[bytes]) -> bytes:
    """Rows of packed samples, unfiltered."""
    return chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows)))


def png(*chunks: bytes) -> bytes:
    return SIGNATURE + b"".join(chunks) + chunk(b"IEND", b"")


def with_chunk(data: bytes, extra: bytes, *, after_pixels: bool) -> bytes:
    """A PNG with one more chunk, behind its IHDR or in front of its IEND."""
    position = len(data) - 12 if after_pixels else len(SIGNATURE) + 25
    return data[:position] + extra + data[position:]


def segment(marker: int, content: bytes) -> bytes:
    return b"\xff" + bytes([marker]) + struct.pack(">H", len(content) + 2) + content


def jpeg_frame(width: int, height: int, precision: int = 8) -> bytes:
    return segment(0xC0, struct.pack(">BHHB", precision, height, width, 1) + b"\x01\x11\x00")


JPEG_SCAN = segment(0xDA, b"\x01\x01\x00\x00\x3f\x00")


def riff(*chunks: bytes) -> bytes:
    body = b"WEBP" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def riff_chunk(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("<I", len(content)) + content + b"\0" * (len(content) & 1)


def canvas(width: int, height: int, flags: int = 0) -> bytes:
    content = struct.pack("<I", flags) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return riff_chunk(b"VP8X", content)


def gif(screen: tuple[int, int], frame: tuple[int, int, int, int]) -> bytes:
    """A GIF whose first frame has one pixel of data, whatever it declares."""
    left, top, width, height = frame
    return (
        b"GIF89a"
        + struct.pack("<HHBBB", *screen, 0x80, 0, 0)
        + bytes((10, 20, 30, 200, 210, 220))
        + b"\x2c"
        + struct.pack("<HHHHB", left, top, width, height, 0)
        + b"\x02\x02\x44\x01\x00\x3b"
    )


def animation(image_format: str, frames: int = 3) -> bytes:
    pictures = [scene(size=(16, 12 + index)).resize((16, 12)) for index in range(frames)]
    return encoded(pictures[0], image_format, save_all=True, append_images=pictures[1:], duration=40)


# Good pictures


def good_pictures() -> tuple[GoodPicture, ...]:
    size = (_WIDTH, _HEIGHT)
    turned = (_HEIGHT, _WIDTH)
    return (
        GoodPicture("jpeg", size, lambda: encoded(scene(), "jpeg")),
        GoodPicture("jpeg progressive", size, lambda: encoded(scene(), "jpeg", progressive=True)),
        GoodPicture("jpeg grey", size, lambda: encoded(scene("L"), "jpeg")),
        GoodPicture("jpeg cmyk", size, lambda: encoded(scene("CMYK"), "jpeg")),
        GoodPicture("jpeg turned by exif", turned, lambda: encoded(scene(), "jpeg", exif=b"Exif\0\0" + exif_block(6))),
        GoodPicture("jpeg with 64 KB of exif", size, _jpeg_with_large_exif),
        GoodPicture("jpeg with html in a comment", size, lambda: encoded(scene(), "jpeg", comment=b"<html><script>")),
        GoodPicture("jpeg with junk between segments", size, _jpeg_with_junk),
        GoodPicture("jpeg of three pictures", (16, 12), lambda: animation("mpo")),
        GoodPicture("png", size, lambda: encoded(scene(), "png")),
        GoodPicture("png 1 x 1", (1, 1), lambda: encoded(scene(size=(1, 1)), "png")),
        GoodPicture("png 1 x 100", (1, 100), lambda: encoded(scene(size=(1, 100)), "png")),
        GoodPicture("png palette", size, lambda: encoded(scene("P"), "png")),
        GoodPicture("png alpha", size, lambda: encoded(scene("RGBA"), "png")),
        GoodPicture("png 16 bit", (4, 4), lambda: png(ihdr(4, 4, 16, GREY), idat([b"\x4e\x20" * 4] * 4))),
        GoodPicture("png with a zip behind it", size, lambda: encoded(scene(), "png") + b"PK\x03\x04" + bytes(100)),
        GoodPicture("png with a jpeg behind it", size, lambda: encoded(scene(), "png") + encoded(scene(), "jpeg")),
        GoodPicture("png in 1-byte chunks", (4, 4), _png_in_tiny_chunks),
        GoodPicture("png with a text called transparency", size, _png_with_misleading_text),
        GoodPicture("apng", (16, 12), lambda: animation("png")),
        GoodPicture("webp", size, lambda: encoded(scene(), "webp")),
        GoodPicture("webp lossless", size, lambda: encoded(scene("RGBA"), "webp", lossless=True)),
        GoodPicture("webp turned by exif", turned, lambda: encoded(scene(), "webp", exif=exif_block(8))),
        GoodPicture("webp with bytes behind it", size, lambda: encoded(scene(), "webp") + b"more"),
        GoodPicture("webp animated", (16, 12), lambda: animation("webp")),
        GoodPicture("gif", size, lambda: encoded(scene("P"), "gif")),
        GoodPicture("gif animated", (16, 12), lambda: animation("gif")),
        GoodPicture("gif without trailer", size, lambda: encoded(scene("P"), "gif")[:-1]),
    )


def _jpeg_with_large_exif() -> bytes:
    data = encoded(scene(), "jpeg")
    return data[:2] + segment(0xE1, b"Exif\0\0" + exif_block(1) + bytes(65_000)) + data[2:]


def _jpeg_with_junk() -> bytes:
    data = encoded(scene(), "jpeg")
    first_segment_end = 4 + struct.unpack_from(">H", data, 4)[0]
    return data[:first_segment_end] + b"junk\xff\xff\xff" + data[first_segment_end + 1 :]


def _png_in_tiny_chunks() -> bytes:
    pixels = zlib.compress((b"\0" + bytes(range(12))) * 4)
    return png(ihdr(4, 4), *(chunk(b"IDAT", bytes([byte])) for byte in pixels))


def _png_with_misleading_text() -> bytes:
    text = chunk(b"tEXt", b"transparency\0none")
    return with_chunk(encoded(scene(), "png"), text, after_pixels=True)


# Bad pictures


def bad_pictures() -> tuple[BadPicture, ...]:
    return (*_truncated(), *_too_large(), *_foreign(), *_damaged_png(), *_damaged_jpeg(), *_damaged_webp_gif())


def _truncated() -> tuple[BadPicture, ...]:
    def cut(image_format: str, percent: int) -> bytes:
        data = encoded(scene("P" if image_format == "gif" else "RGB"), image_format)
        return data[: len(data) * percent // 100]

    return (
        *(
            BadPicture(
                f"{image_format} cut at {percent} %",
                422,
                "image_truncated",
                lambda image_format=image_format, percent=percent: cut(image_format, percent),
            )
            for image_format in ("jpeg", "png", "webp", "gif")
            for percent in (10, 50, 99)
        ),
        BadPicture("empty", 422, "image_truncated", lambda: b""),
    )


def _too_large() -> tuple[BadPicture, ...]:
    pixel = idat([b"\0\0\0"])

    def large(name: str, build: Callable[[], bytes]) -> BadPicture:
        return BadPicture(name, 413, "media_too_large", build)

    return (
        large("png of 20000 x 20000", lambda: png(ihdr(20_000, 20_000), pixel)),
        large("png of 65535 x 65535", lambda: png(ihdr(65_535, 65_535), pixel)),
        large("png of 6000 x 6000", lambda: png(ihdr(6000, 6000), pixel)),
        large("png with too long a side", lambda: png(ihdr(8193, 100), pixel)),
        large("jpeg of 20000 x 20000", lambda: b"\xff\xd8" + jpeg_frame(20_000, 20_000) + JPEG_SCAN),
        large("jpeg of 65535 x 65535", lambda: b"\xff\xd8" + jpeg_frame(65_535, 65_535) + JPEG_SCAN),
        large("webp of 16384 x 16384", lambda: riff(canvas(16_384, 16_384), riff_chunk(b"VP8 ", bytes(10)))),
        large("gif with a screen of 30000 x 30000", lambda: gif((30_000, 30_000), (0, 0, 1, 1))),
        large("gif with a frame far outside its screen", lambda: gif((1, 1), (30_000, 30_000, 1, 1))),
        large("too many bytes", lambda: encoded(scene(), "png") + bytes(10 * 2**20)),
        BadPicture("aspect 1000:1", 400, "image_aspect_ratio", lambda: png(ihdr(8000, 8), pixel)),
        BadPicture("aspect 1:101", 400, "image_aspect_ratio", lambda: png(ihdr(1, 101), pixel)),
    )


OPT_IN = frozenset({"heic", "avif", "tiff", "bmp"})
"""Of the foreign ones those that are foreign only by default."""


def _foreign() -> tuple[BadPicture, ...]:
    filler = bytes(64)
    contents = {
        "heic": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + filler,
        "avif": b"\0\0\0\x18ftypavif\0\0\0\0mif1avif" + filler,
        "mp4": b"\0\0\0\x18ftypmp42\0\0\0\0isommp42" + filler,
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>',
        "svg with xml declaration": b'<?xml version="1.0"?>\n<!-- x -->\n<svg width="9" height="9"/>',
        "html": b"\n<!DOCTYPE html><html><body>no picture</body></html>",
        "pdf": b"%PDF-1.7\n1 0 obj<<>>endobj",
        "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        "tiff": encoded(scene(), "tiff"),
        "bmp": encoded(scene(), "bmp"),
        "ico": encoded(scene(), "ico"),
        "psd": b"8BPS\0\1" + filler,
        "fits": b"SIMPLE  =                    T" + filler,
        "text": b"This is not a picture at all, however long you look at it.",
        "random bytes": random.Random(7).randbytes(2048),
        "zeros": bytes(2048),
        "png without its first byte": encoded(scene(), "png")[1:],
        "avi": b"RIFF\x40\0\0\0AVI LIST" + filler,
    }
    return tuple(
        BadPicture(name, 415, "unsupported_image_format", lambda data=data: data) for name, data in contents.items()
    )


def _damaged(name: str, build: Callable[[], bytes]) -> BadPicture:
    return BadPicture(name, 422, "image_undecodable", build)


def _cut_short(name: str, build: Callable[[], bytes]) -> BadPicture:
    return BadPicture(name, 422, "image_truncated", build)


def _flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :]


def _damaged_png() -> tuple[BadPicture, ...]:
    row, good = bytes(8 * 3), idat([bytes(8 * 3)] * 8)
    bomb = zlib.compress(bytes(8 * 2**20))
    return (
        _damaged("png of 0 x 5", lambda: png(ihdr(0, 5), good)),
        _damaged("png of 5 x 0", lambda: png(ihdr(5, 0), good)),
        _damaged("png with a wrong checksum in IHDR", lambda: _flipped(png(ihdr(8, 8), good), 8 + 8 + 13)),
        _damaged("png with a wrong checksum in IDAT", lambda: _flipped(png(ihdr(8, 8), good), 8 + 25 + len(good) - 1)),
        _damaged("png with other first chunk", lambda: png(chunk(b"gAMA", bytes(4)), ihdr(8, 8), good)),
        _damaged("png with a short IHDR", lambda: png(chunk(b"IHDR", bytes(12)), good)),
        _damaged("png with bit depth 5", lambda: png(ihdr(8, 8, 5), good)),
        _damaged("png without pixels", lambda: png(ihdr(8, 8))),
        _damaged("png without palette", lambda: png(ihdr(8, 8, 8, PALETTE), chunk(b"IDAT", b"garbage"))),
        _damaged("png with pixels that are no zlib", lambda: png(ihdr(8, 8), chunk(b"IDAT", b"garbage" * 9))),
        _damaged("png with a text bomb", lambda: png(ihdr(8, 8), chunk(b"zTXt", b"k\0\0" + bomb), good)),
        _damaged("png with a text bomb at its end", lambda: png(ihdr(8, 8), good, chunk(b"zTXt", b"k\0\0" + bomb))),
        _damaged("png with a profile bomb", lambda: png(ihdr(8, 8), chunk(b"iCCP", b"k\0\0" + bomb), good)),
        _damaged("png of too many chunks", lambda: png(ihdr(8, 8), good, *[chunk(b"tEXt", b"")] * 30_000)),
        _damaged("apng with frames out of order", lambda: png(ihdr(8, 8), _ACTL, _fctl(5), good)),
        _damaged("apng with a frame outside", lambda: png(ihdr(8, 8), _ACTL, _fctl(0, width=900), good)),
        _cut_short("png with fewer rows than declared", lambda: png(ihdr(8, 8), idat([row] * 3))),
        _cut_short("png with a row less than declared", lambda: png(ihdr(8, 8), idat([b"\x99" * 24] * 7))),
        _cut_short("png that claims to be larger", lambda: png(ihdr(80, 80), good)),
        _cut_short("png with a chunk that reaches beyond its end", lambda: png(ihdr(8, 8), _LONG_CHUNK, good)),
        _cut_short("png that ends after IHDR", lambda: SIGNATURE + ihdr(8, 8)),
        _cut_short("png without IEND", lambda: png(ihdr(8, 8), good)[:-12]),
    )


_ACTL = chunk(b"acTL", struct.pack(">II", 2, 0))
_LONG_CHUNK = struct.pack(">I", 2**31 - 1) + b"tEXt"


def _fctl(sequence: int, width: int = 8) -> bytes:
    return chunk(b"fcTL", struct.pack(">IIIIIHHBB", sequence, width, 8, 0, 0, 1, 10, 0, 0))


def _damaged_jpeg() -> tuple[BadPicture, ...]:
    start = b"\xff\xd8"

    def good() -> bytes:
        return encoded(scene("L"), "jpeg")

    def frame_at(data: bytes) -> int:
        return data.index(b"\xff\xc0")

    return (
        _damaged("jpeg without a frame", lambda: start + JPEG_SCAN + bytes(100) + b"\xff\xd9"),
        _damaged("jpeg that ends at once", lambda: start + b"\xff\xd9"),
        _damaged("jpeg of 0 x 5", lambda: start + jpeg_frame(0, 5) + JPEG_SCAN + b"\xff\xd9"),
        _damaged("jpeg of 5 x 0", lambda: start + jpeg_frame(5, 0) + JPEG_SCAN + b"\xff\xd9"),
        _damaged("jpeg with two frames", lambda: start + jpeg_frame(8, 8) + good()[2:]),
        _damaged("jpeg with a segment of length 1", lambda: start + b"\xff\xe0\x00\x01" + good()[2:]),
        BadPicture("jpeg of 101 scans", 422, "image_feature_unsupported", _jpeg_of_many_scans),
        _damaged("jpeg of 12 bits", lambda: good()[: frame_at(good()) + 4] + b"\x0c" + good()[frame_at(good()) + 5 :]),
        _damaged("jpeg without tables", lambda: start + jpeg_frame(8, 8) + JPEG_SCAN + bytes(100) + b"\xff\xd9"),
        _cut_short("jpeg with only a frame", lambda: start + jpeg_frame(8, 8)),
        _cut_short("jpeg of a million fill bytes", lambda: start + b"\xff" * 1_000_000),
        _cut_short("jpeg of a million stuffed zeros", lambda: start + b"\xff\x00" * 500_000),
        _cut_short("jpeg without its end", lambda: good()[:-2]),
    )


def _jpeg_of_many_scans() -> bytes:
    """The last scan of a progressive picture, with its tables, again and again."""
    data = encoded(scene(), "jpeg", progressive=True)
    last_scan = data[data.rindex(b"\xff\xc4", 0, data.rindex(b"\xff\xda")) : -2]
    return data[:-2] + last_scan * 100 + data[-2:]


def _damaged_webp_gif() -> tuple[BadPicture, ...]:
    def webp() -> bytes:
        return encoded(scene(), "webp")

    def bitstream() -> bytes:
        return webp()[12:]

    return (
        _cut_short("webp with too large a RIFF size", lambda: webp()[:4] + struct.pack("<I", 2**30) + webp()[8:]),
        _damaged("webp with too small a RIFF size", lambda: webp()[:4] + struct.pack("<I", 40) + webp()[8:]),
        _damaged("webp with a RIFF size of 4", lambda: webp()[:4] + struct.pack("<I", 4) + webp()[8:]),
        _damaged("webp with an unknown first chunk", lambda: riff(riff_chunk(b"VP9 ", bytes(40)))),
        _damaged("webp without a start code", lambda: _flipped(webp(), 23)),
        _damaged("webp with a canvas that is not its picture's", lambda: riff(canvas(100, 100), bitstream())),
        _damaged("webp with a canvas and no picture", lambda: riff(canvas(8, 8))),
        _damaged(
            "webp with a garbled bitstream", lambda: riff(riff_chunk(b"VP8L", b"\x2f\x3f\xc0\x0b\x00" + b"\xa5" * 99))
        ),
        _damaged("webp of 0 x 0", lambda: webp()[:26] + bytes(4) + webp()[30:]),
        _damaged("gif of 0 x 0", lambda: gif((0, 0), (0, 0, 0, 0))),
        _damaged("gif with an empty frame", lambda: gif((8, 8), (0, 0, 0, 8))),
        _damaged("gif without a frame", lambda: gif((8, 8), (0, 0, 8, 8))[:19] + b"\x3b"),
        _damaged("gif with an unknown block", lambda: gif((8, 8), (0, 0, 8, 8))[:19] + b"\x99" * 100),
        _cut_short("gif with less data than declared", lambda: gif((8, 8), (0, 0, 8, 8))),
        _cut_short("gif that ends after its screen", lambda: gif((8, 8), (0, 0, 8, 8))[:13]),
    )
