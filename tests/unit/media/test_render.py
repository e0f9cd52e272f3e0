"""Pixels: every format, mode and orientation through a real worker, and recipes against Transformers' own processor."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest
import pytest_asyncio
from PIL import Image

from opsin.core.errors import MediaUndecodable
from opsin.media import decode, render
from opsin.media.config import ACCEPTED_BY_DEFAULT as FORMATS
from opsin.media.config import MediaConfig
from opsin.media.header import read_header
from opsin.media.loader import inspect
from opsin.media.pool import RenderPool
from opsin.vision.plan import RenderRecipe, Size
from tests.corpus import pictures
from tests.corpus.pictures import chunk, encoded, exif_block, idat, ihdr, png, scene, with_chunk

CONFIG = MediaConfig(render_timeout_s=60)
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


def _all(colour: Colour) -> Quadrants:
    return colour, colour, colour, colour


def png_case(name: str, data: bytes, expected: Quadrants) -> Case:
    def build(orientation: int) -> bytes:
        """eXIf before the pixels for odd orientations, after them for even ones."""
        return with_chunk(data, chunk(b"eXIf", exif_block(orientation)), after_pixels=orientation % 2 == 0)

    return Case(f"png {name}", build, expected)


def jpeg_case(name: str, picture: Image.Image, expected: Quadrants, tolerance: int) -> Case:
    def build(orientation: int) -> bytes:
        exif = b"Exif\0\0" + exif_block(orientation, ">")
        return encoded(picture, "jpeg", quality=95, subsampling=0, exif=exif)

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


def cases() -> tuple[Case, ...]:
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
        png_case("RGB48", packed_png(16, 2, [b"\x4e\x20\x01\x00\xff\x00" * HALF] * 4), _all((78, 1, 255))),
        png_case(
            "RGB48 + tRNS",
            packed_png(16, 2, [b"\x4e\x20" * 3 * HALF, b"\x10\x20" * 3 * HALF] * 2, chunk(b"tRNS", b"\x4e\x20" * 3)),
            grey(255, 16, 255, 16),
        ),
        png_case(
            "RGBA64",
            packed_png(16, 6, [b"\x4e\x20\1\0\xff\0\0\0" * HALF] * 4),
            _all(WHITE),
        ),
        jpeg_case("L", quartered("L", GREY_LEVELS), grey(*GREY_LEVELS), 3),
        jpeg_case("RGB", rgb, RGB, 6),
        jpeg_case(
            "CMYK", quartered("CMYK", ((0, 255, 255, 0), (255, 0, 255, 55), (255, 255, 0, 0), (5, 15, 245, 0))), RGB, 6
        ),
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


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pool() -> AsyncIterator[RenderPool]:
    pool = RenderPool(CONFIG)
    await pool.start()
    yield pool
    await pool.close()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
async def test_format_mode_and_orientation(pool: RenderPool, case: Case) -> None:
    for orientation in range(1, 9) if case.oriented else (1,):
        media = inspect(case.build(orientation), CONFIG, "p")
        assert media.header.orientation == orientation
        upright = Size(HEIGHT, WIDTH) if orientation >= 5 else Size(WIDTH, HEIGHT)
        rendered = await pool.render(media, RenderRecipe((), upright, 0, 0, overview=False))
        assert (rendered.num_tiles, rendered.tile) == (1, upright)
        for seen, stored in zip(centres(rendered.pixels, upright), UPRIGHT[orientation], strict=True):
            worst = max(abs(a - b) for a, b in zip(seen, case.expected[stored], strict=True))
            assert worst <= case.tolerance, (case.name, orientation, seen, case.expected[stored])


def centres(pixels: bytes, size: Size) -> Quadrants:
    """Colours in the middle of the four quadrants."""
    points = [(x, y) for y in (size.height // 4, size.height * 3 // 4) for x in (size.width // 4, size.width * 3 // 4)]
    offsets = [(y * size.width + x) * 3 for x, y in points]
    return cast("Quadrants", tuple(tuple(pixels[offset : offset + 3]) for offset in offsets))


def whole(data: bytes) -> Image.Image:
    """Rendered in this process, as it is."""
    header = read_header(data, None, FORMATS)
    size = header.upright
    pixels = render.render(data, header, RenderRecipe((), size, 0, 0, overview=False))
    return Image.frombytes("RGB", (size.width, size.height), pixels)


def test_what_a_gif_frame_leaves_open_is_white() -> None:
    picture = whole(pictures.gif((3, 2), (1, 1, 1, 1)))
    assert [picture.getpixel((x, y)) for y in range(2) for x in range(3)].count(WHITE) == 5
    assert picture.getpixel((1, 1)) == (10, 20, 30)


def test_a_text_chunk_cannot_make_colours_transparent() -> None:
    text = chunk(b"tEXt", b"transparency\0\0")
    plain = encoded(scene(), "png")
    for after_pixels in (False, True):
        assert whole(with_chunk(plain, text, after_pixels=after_pixels)).tobytes() == scene().tobytes()


def test_only_the_first_frame_is_seen() -> None:
    first, second = Image.new("RGB", (9, 9), (200, 10, 10)), Image.new("RGB", (9, 9), (10, 10, 200))
    for image_format in ("gif", "png", "webp"):
        data = encoded(first, image_format, save_all=True, append_images=[second], lossless=True)
        assert read_header(data, None, FORMATS).frames == 2
        assert whole(data).getpixel((4, 4)) == (200, 10, 10)


def test_black_rows_at_the_end_are_rows() -> None:
    black = Image.new("RGB", (5, 5))
    for mode in ("RGB", "L", "1", "P", "RGBA"):
        assert whole(encoded(black.convert(mode), "png")).size == (5, 5)


def test_a_header_of_another_size_is_refused() -> None:
    data = encoded(scene(), "png")
    other = read_header(encoded(scene(size=(64, 47)), "png"), None, FORMATS)
    with pytest.raises(MediaUndecodable):
        decode.verify(data, other)


def test_execute_cuts_in_reading_order_with_the_overview_last() -> None:
    picture = quartered("RGB", RGB)
    pixels = render.execute(picture, RenderRecipe((), Size(24, 16), rows=2, columns=2, overview=True))
    tile_bytes = 24 * 16 * 3
    tiles = [pixels[start : start + tile_bytes] for start in range(0, len(pixels), tile_bytes)]
    assert [tile[:3] for tile in tiles[:4]] == [bytes(colour) for colour in RGB]
    assert tiles[4] == picture.resize((24, 16), Image.Resampling.LANCZOS).tobytes()


@pytest.mark.parametrize(
    ("size", "resizes", "rows", "columns"),
    [
        ((300, 200), ((256, 170), (256, 192)), 3, 4),
        ((50, 90), ((142, 256), (192, 256)), 4, 3),
        ((7, 7), ((256, 256), (256, 256)), 4, 4),
    ],
)
def test_recipes_give_the_tiles_of_transformers(
    size: tuple[int, int], resizes: tuple[tuple[int, int], ...], rows: int, columns: int
) -> None:
    processors = pytest.importorskip("transformers.models.idefics3.image_processing_pil_idefics3")
    processor = processors.Idefics3ImageProcessorPil(
        size={"longest_edge": 256}, max_image_size={"longest_edge": 64}, do_rescale=False, do_normalize=False
    )
    picture = scene(size=size)
    expected = processor(picture, return_tensors="np")["pixel_values"][0].transpose(0, 2, 3, 1)
    recipe = RenderRecipe(tuple(Size(*pair) for pair in resizes), Size(64, 64), rows, columns, overview=True)
    assert expected.shape == (rows * columns + 1, 64, 64, 3)
    assert render.execute(picture, recipe) == expected.astype("uint8").tobytes()
