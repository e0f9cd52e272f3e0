"""Golden pictures of four quadrants: every mode and orientation of the formats that are accepted by default."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from PIL import Image

from tests.corpus.pictures import chunk, encoded, exif_block, idat, ihdr, png, segment, with_chunk

WIDTH, HEIGHT = 48, 32  # quadrants are whole JPEG blocks
WHITE = (255, 255, 255)

Colour = tuple[int, int, int]
Quadrants = tuple[Colour, Colour, Colour, Colour]  # top left, top right, bottom left, bottom right

UPRIGHT = {
    **{1: (0, 1, 2, 3), 2: (1, 0, 3, 2), 3: (3, 2, 1, 0), 4: (2, 3, 0, 1)},
    **{5: (0, 2, 1, 3), 6: (2, 0, 3, 1), 7: (3, 1, 2, 0), 8: (1, 3, 0, 2)},
}
"""Orientation to the stored quadrant that belongs in each upright one; from the EXIF standard, table of tag 0x0112."""


@dataclass(frozen=True, slots=True)
class Case:
    """A picture of four quadrants; ``build`` gets an orientation or, for containers without one, 1."""

    name: str
    build: Callable[[int], bytes]
    expected: Quadrants
    tolerance: int = 0
    oriented: bool = True


def quartered(mode: str, colours: Sequence[Any]) -> Image.Image:
    picture = Image.new(mode, (WIDTH, HEIGHT))
    for number, colour in enumerate(colours):
        left, top = number % 2 * WIDTH // 2, number // 2 * HEIGHT // 2
        picture.paste(colour, (left, top, left + WIDTH // 2, top + HEIGHT // 2))
    return picture


def grey(*levels: int) -> Quadrants:
    return cast("Quadrants", tuple((level, level, level) for level in levels))


def everywhere(colour: Colour) -> Quadrants:
    return colour, colour, colour, colour


def png_case(name: str, data: bytes, expected: Quadrants) -> Case:
    def build(orientation: int) -> bytes:
        """eXIf before the pixels for odd orientations, after them for even ones."""
        return with_chunk(data, chunk(b"eXIf", exif_block(orientation)), after_pixels=orientation % 2 == 0)

    return Case(f"png {name}", build, expected)


def jpeg_case(name: str, picture: Image.Image, expected: Quadrants, tolerance: int, **options: Any) -> Case:
    def build(orientation: int) -> bytes:
        exif = b"Exif\0\0" + exif_block(orientation, ">")
        return encoded(picture, "jpeg", quality=95, subsampling=0, exif=exif, **options)

    return Case(f"jpeg {name}", build, expected, tolerance)


def webp_case(name: str, picture: Image.Image, expected: Quadrants, lossless: bool = True) -> Case:
    def build(orientation: int) -> bytes:
        return encoded(picture, "webp", lossless=lossless, quality=95, exif=exif_block(orientation))

    return Case(f"webp {name}", build, expected, 0 if lossless else 12)


def packed_png(depth: int, colour_type: int, cells: Sequence[bytes], *extra: bytes) -> bytes:
    """``cells``: the packed samples of half a row, for each quadrant."""
    rows = [cells[0] + cells[1]] * (HEIGHT // 2) + [cells[2] + cells[3]] * (HEIGHT // 2)
    return png(ihdr(WIDTH, HEIGHT, depth, colour_type), *extra, idat(rows))


RGB: Quadrants = ((255, 0, 0), (0, 200, 0), (0, 0, 255), (250, 240, 10))
GREY_LEVELS = (10, 80, 160, 250)
HALF = WIDTH // 2


def palette_picture() -> Image.Image:
    picture = quartered("P", (0, 1, 2, 3))
    picture.putpalette([channel for colour in RGB for channel in colour])
    return picture


def golden_cases() -> tuple[Case, ...]:
    rgb = quartered("RGB", RGB)
    levels16 = [struct.pack(">H", level) * HALF for level in (20_000, 256, 65_535, 20_001)]
    rgba = ((0, 0, 0, 0), (0, 200, 0, 255), (0, 0, 255, 0), (100, 0, 0, 128))
    on_white: Quadrants = (WHITE, (0, 200, 0), WHITE, (177, 127, 127))
    return (
        png_case("1", encoded(quartered("1", (0, 1, 1, 0)), "png"), grey(0, 255, 255, 0)),
        png_case("1 + tRNS", packed_png(1, 0, [b"\0" * 3, b"\xff" * 3] * 2, chunk(b"tRNS", b"\0\0")), grey(*[255] * 4)),
        png_case("L", encoded(quartered("L", GREY_LEVELS), "png"), grey(*GREY_LEVELS)),
        png_case("L + tRNS", encoded(quartered("L", GREY_LEVELS), "png", transparency=80), grey(10, 255, 160, 250)),
        png_case(
            "L of 2 bits + tRNS",
            packed_png(2, 0, [b"\0" * 6, b"\x55" * 6, b"\xaa" * 6, b"\xff" * 6], chunk(b"tRNS", b"\0\1")),
            grey(0, 255, 170, 255),
        ),
        png_case(
            "LA", encoded(quartered("LA", ((10, 255), (80, 0), (0, 128), (250, 255))), "png"), grey(10, 255, 127, 250)
        ),
        png_case("P", encoded(palette_picture(), "png"), RGB),
        png_case("P + tRNS index", encoded(palette_picture(), "png", transparency=1), (RGB[0], WHITE, RGB[2], RGB[3])),
        png_case(
            "P + tRNS alphas",
            encoded(palette_picture(), "png", transparency=bytes((255, 0, 128, 255))),
            (RGB[0], WHITE, (127, 127, 255), RGB[3]),
        ),
        png_case("RGB", encoded(rgb, "png"), RGB),
        png_case("RGB interlaced", _interlaced(), RGB),
        png_case("RGB + tRNS", encoded(rgb, "png", transparency=(255, 0, 0)), (WHITE, *RGB[1:])),
        png_case("RGBA", encoded(quartered("RGBA", rgba), "png"), on_white),
        png_case("I;16", packed_png(16, 0, levels16), grey(78, 1, 255, 78)),
        png_case("I;16 + tRNS", packed_png(16, 0, levels16, chunk(b"tRNS", b"\x4e\x20")), grey(255, 1, 255, 78)),
        png_case("LA of 16 bits", packed_png(16, 4, [b"\x4e\x20\xff\xff" * HALF] * 4), grey(*[78] * 4)),
        png_case("RGB48", packed_png(16, 2, [b"\x4e\x20\x01\x00\xff\x00" * HALF] * 4), everywhere((78, 1, 255))),
        png_case(
            "RGB48 + tRNS",
            packed_png(16, 2, [b"\x4e\x20" * 3 * HALF, b"\x10\x20" * 3 * HALF] * 2, chunk(b"tRNS", b"\x4e\x20" * 3)),
            grey(255, 16, 255, 16),
        ),
        png_case(
            "RGBA64",
            packed_png(16, 6, [b"\x4e\x20\1\0\xff\0\0\0" * HALF] * 4),
            everywhere(WHITE),
        ),
        jpeg_case("L", quartered("L", GREY_LEVELS), grey(*GREY_LEVELS), 3),
        jpeg_case("RGB", rgb, RGB, 6),
        jpeg_case(
            "CMYK", quartered("CMYK", ((0, 255, 255, 0), (255, 0, 255, 55), (255, 255, 0, 0), (5, 15, 245, 0))), RGB, 6
        ),
        jpeg_case("RGB progressive", rgb, RGB, 6, progressive=True),
        Case("jpeg YCCK", _ycck, RGB, 6),
        Case("jpeg of three pictures", _mpo, RGB, 6),
        webp_case("RGB lossless", rgb, RGB),
        webp_case("RGB lossy", rgb, RGB, lossless=False),
        webp_case("RGBA lossless", quartered("RGBA", rgba), on_white),
        Case("gif P", lambda _: encoded(palette_picture(), "gif"), RGB, oriented=False),
        Case(
            "gif P + transparency",
            lambda _: encoded(palette_picture(), "gif", transparency=2),
            (RGB[0], RGB[1], WHITE, RGB[3]),
            oriented=False,
        ),
    )


def _interlaced() -> bytes:
    """Adam7, packed here because Pillow does not write it."""
    picture = quartered("RGB", RGB)
    rows: list[bytes] = []
    for left, top, step_x, step_y in (
        *((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)),
        *((0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)),
    ):
        for y in range(top, HEIGHT, step_y):
            rows.append(b"".join(bytes(cast("Colour", picture.getpixel((x, y)))) for x in range(left, WIDTH, step_x)))
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 1))
    return png(header, idat(rows))


def _ycck(orientation: int) -> bytes:
    """CMYK as print shops store it: C, M and Y as the YCbCr of what they leave of the light.

    Written as a CMYK JPEG and then declared to be YCCK, by the last byte of Adobe's segment. Pillow inverts what it
    writes and reads, as Adobe does, so that the planes of a colour without black are its YCbCr.
    """
    ycbcr = quartered("RGB", RGB).convert("YCbCr")
    planes = (*ycbcr.split(), Image.new("L", ycbcr.size))
    data = encoded(Image.merge("CMYK", planes), "jpeg", quality=95, subsampling=0)
    adobe = data.index(b"Adobe")
    exif = segment(0xE1, b"Exif\0\0" + exif_block(orientation))
    return data[:2] + exif + data[2 : adobe + 11] + b"\x02" + data[adobe + 12 :]


def _mpo(orientation: int) -> bytes:
    others = [Image.new("RGB", (WIDTH, HEIGHT), colour) for colour in ("black", "white")]
    exif = b"Exif\0\0" + exif_block(orientation)
    options = {"quality": 95, "subsampling": 0, "exif": exif}
    return encoded(quartered("RGB", RGB), "mpo", save_all=True, append_images=others, **options)
