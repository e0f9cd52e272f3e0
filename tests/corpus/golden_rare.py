"""Golden pictures of four quadrants in the formats that have to be asked for: BMP, TIFF, AVIF, HEIC."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any

import pillow_heif
from PIL import Image

from tests.corpus.golden import (
    GREY_LEVELS,
    HEIGHT,
    RGB,
    WHITE,
    WIDTH,
    Case,
    Quadrants,
    everywhere,
    grey,
    palette_picture,
    quartered,
)
from tests.corpus.pictures import encoded, exif_block

_SHORT, _LONG = 3, 4
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC, _OFFSETS = 256, 257, 258, 259, 262, 273
_ORIENTATION, _SAMPLES, _ROWS, _COUNTS, _EXTRA = 274, 277, 278, 279, 338
ALPHAS = ((0, 0, 0, 0), (0, 200, 0, 255), (0, 0, 255, 0), (100, 0, 0, 128))
ON_WHITE: Quadrants = (WHITE, (0, 200, 0), WHITE, (177, 127, 127))


def rare_cases() -> tuple[Case, ...]:
    return (*_tiff_cases(), *_bmp_cases(), *_avif_cases(), *_heic_cases())


def tiff(tags: Mapping[int, int | Sequence[int]], pixels: bytes, order: str = "<", *, big: bool = False) -> bytes:
    """One page without compression; ``tags`` beside those of its size and place."""
    offset = 16 if big else 8
    directory_at = offset + len(pixels)
    all_tags = {
        **{_WIDTH: WIDTH, _HEIGHT: HEIGHT, _COMPRESSION: 1, _OFFSETS: offset, _ROWS: HEIGHT, _COUNTS: len(pixels)},
        **tags,
    }
    count, word, value_bytes = ("Q", "Q", 8) if big else ("H", "I", 4)
    directory = struct.pack(order + count, len(all_tags))
    outside_at = directory_at + len(directory) + len(all_tags) * (4 + 2 * value_bytes) + value_bytes
    outside = b""
    for tag, value in sorted(all_tags.items()):
        numbers = (value,) if isinstance(value, int) else tuple(value)
        kind = _LONG if max(numbers, default=0) > 65_535 else _SHORT
        packed = struct.pack(f"{order}{len(numbers)}{'I' if kind == _LONG else 'H'}", *numbers)
        if len(packed) > value_bytes:
            packed, outside = struct.pack(order + word, outside_at + len(outside)), outside + packed
        directory += struct.pack(f"{order}HH{word}", tag, kind, len(numbers)) + packed.ljust(value_bytes, b"\0")
    magic = {"<": b"II", ">": b"MM"}[order] + struct.pack(order + "H", 43 if big else 42)
    start = struct.pack(order + "HHQ", 8, 0, directory_at) if big else struct.pack(order + "I", directory_at)
    return magic + start + pixels + directory + struct.pack(order + word, 0) + outside


def cells(samples: Sequence[bytes]) -> bytes:
    """Rows of four quadrants, each of one sample."""
    half = WIDTH // 2
    rows = [(samples[row] * half + samples[row + 1] * half) * (HEIGHT // 2) for row in (0, 2)]
    return b"".join(rows)


def _tiff_cases() -> tuple[Case, ...]:
    rgb = quartered("RGB", RGB)
    levels16 = [struct.pack("<H", level) for level in (20_000, 256, 65_535, 20_001)]
    levels16_big = [level[::-1] for level in levels16]
    halved = [(2, 4, 8), (40, 20, 10), (255, 255, 255), (0, 0, 0)]

    def saved(name: str, picture: Image.Image, expected: Quadrants, tolerance: int = 0, **options: Any) -> Case:
        def build(orientation: int) -> bytes:
            return encoded(picture, "tiff", tiffinfo={_ORIENTATION: orientation}, **options)

        return Case(f"tiff {name}", build, expected, tolerance)

    def made(
        name: str, tags: Mapping[int, int | Sequence[int]], pixels: bytes, expected: Quadrants, order: str = "<"
    ) -> Case:
        def build(orientation: int) -> bytes:
            """As BigTIFF for even orientations; Pillow reads it only in Intel's order."""
            big = order == "<" and orientation % 2 == 0
            return tiff({**tags, _ORIENTATION: orientation}, pixels, order, big=big)

        return Case(f"tiff {name}", build, expected)

    return (
        saved("1", quartered("1", (0, 1, 1, 0)), grey(0, 255, 255, 0)),
        saved("1 by fax", quartered("1", (0, 1, 1, 0)), grey(0, 255, 255, 0), compression="group4"),
        saved("L", quartered("L", GREY_LEVELS), grey(*GREY_LEVELS)),
        saved("LA", quartered("LA", ((10, 255), (80, 0), (0, 128), (250, 255))), grey(10, 255, 127, 250)),
        saved("P", palette_picture(), RGB),
        saved("RGB", rgb, RGB),
        saved("RGB in LZW", rgb, RGB, compression="tiff_lzw"),
        saved("RGB in deflate", rgb, RGB, compression="tiff_adobe_deflate"),
        saved("RGB in JPEG", rgb, RGB, 8, compression="jpeg", quality=95),
        saved("RGBA", quartered("RGBA", ALPHAS), ON_WHITE),
        saved("CMYK", quartered("CMYK", ((0, 255, 255, 0), (255, 0, 255, 55), (255, 255, 0, 0), (5, 15, 245, 0))), RGB),
        made(
            "L inverted",
            {_BITS: 8, _PHOTOMETRIC: 0, _SAMPLES: 1},
            cells([bytes([255 - level]) for level in GREY_LEVELS]),
            grey(*GREY_LEVELS),
        ),
        made("I;16", {_BITS: 16, _PHOTOMETRIC: 1, _SAMPLES: 1}, cells(levels16), grey(78, 1, 255, 78)),
        made("I;16B", {_BITS: 16, _PHOTOMETRIC: 1, _SAMPLES: 1}, cells(levels16_big), grey(78, 1, 255, 78), ">"),
        made(
            "RGB48",
            {_BITS: (16, 16, 16), _PHOTOMETRIC: 2, _SAMPLES: 3},
            cells([struct.pack(">3H", 20_000, 256, 65_280)] * 4),
            everywhere((78, 1, 255)),
            ">",
        ),
        made(
            "RGB premultiplied",
            {_BITS: (8,) * 4, _PHOTOMETRIC: 2, _SAMPLES: 4, _EXTRA: 1},
            cells([bytes((*colour, 255)) for colour in halved]),
            (halved[0], halved[1], halved[2], halved[3]),
        ),
    )


def _bmp_cases() -> tuple[Case, ...]:
    def saved(name: str, picture: Image.Image, expected: Quadrants) -> Case:
        return Case(f"bmp {name}", lambda _: encoded(picture, "bmp"), expected, oriented=False)

    return (
        saved("1", quartered("1", (0, 1, 1, 0)), grey(0, 255, 255, 0)),
        saved("L", quartered("L", GREY_LEVELS), grey(*GREY_LEVELS)),
        saved("P", palette_picture(), RGB),
        saved("RGB", quartered("RGB", RGB), RGB),
        Case("bmp from top to bottom", lambda _: _top_down(), RGB, oriented=False),
    )


def _top_down() -> bytes:
    """A negative height, and rows in reading order."""
    data = encoded(quartered("RGB", RGB), "bmp")
    (start,) = struct.unpack_from("<I", data, 10)
    row = (WIDTH * 3 + 3) // 4 * 4
    rows = [data[at : at + row] for at in range(start, start + row * HEIGHT, row)]
    return data[:22] + struct.pack("<i", -HEIGHT) + data[26:start] + b"".join(reversed(rows))


def _avif_cases() -> tuple[Case, ...]:
    def saved(name: str, picture: Image.Image, expected: Quadrants, tolerance: int) -> Case:
        def build(orientation: int) -> bytes:
            """The encoder turns the tag into ``irot`` and ``imir``."""
            exif = b"Exif\0\0" + exif_block(orientation)
            return encoded(picture, "avif", quality=98, subsampling="4:4:4", speed=10, exif=exif, max_threads=1)

        return Case(f"avif {name}", build, expected, tolerance)

    return (
        saved("L", quartered("L", GREY_LEVELS), grey(*GREY_LEVELS), 3),
        saved("RGB", quartered("RGB", RGB), RGB, 6),
        saved("RGBA", quartered("RGBA", ALPHAS), ON_WHITE, 6),
    )


def heic(picture: Image.Image | pillow_heif.HeifFile, **options: Any) -> bytes:
    buffer = BytesIO()
    file = pillow_heif.from_pillow(picture) if isinstance(picture, Image.Image) else picture
    file.save(buffer, quality=-1, chroma=444, **options)
    return buffer.getvalue()


def _heic_cases() -> tuple[Case, ...]:
    def saved(name: str, build: Callable[[bytes], bytes], expected: Quadrants, tolerance: int) -> Case:
        return Case(f"heic {name}", lambda orientation: build(_exif(orientation)), expected, tolerance)

    return (
        saved("L", lambda exif: heic(quartered("L", GREY_LEVELS), exif=exif), grey(*GREY_LEVELS), 3),
        saved("RGB", lambda exif: heic(quartered("RGB", RGB), exif=exif), RGB, 6),
        saved("RGBA", lambda exif: heic(quartered("RGBA", ALPHAS), exif=exif), ON_WHITE, 6),
        saved("RGB of 10 bits", _heic_of_10_bits, RGB, 6),
    )


def _exif(orientation: int) -> bytes:
    return b"Exif\0\0" + exif_block(orientation)


def _heic_of_10_bits(exif: bytes) -> bytes:
    samples = cells([struct.pack("<3H", *(channel * 257 for channel in colour)) for colour in RGB])
    return heic(pillow_heif.from_bytes("RGB;16", (WIDTH, HEIGHT), samples), exif=exif)
