"""Pixels: every format, mode and orientation through a real worker, and recipes against Transformers' own processor."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

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
from opsin.media.types import ImageFormat
from opsin.vision.plan import Size
from opsin.vision.recipe import BLACK, Colour, Filter, RenderRecipe, Resize, View, Window, whole
from tests.corpus import pictures
from tests.corpus.golden import HEIGHT, RGB, UPRIGHT, WHITE, WIDTH, Case, Quadrants, golden_cases, quartered
from tests.corpus.golden_rare import rare_cases
from tests.corpus.pictures import chunk, encoded, scene, with_chunk

CONFIG = MediaConfig(render_timeout_s=60, formats=tuple(ImageFormat))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pool() -> AsyncIterator[RenderPool]:
    pool = RenderPool(CONFIG)
    await pool.start()
    yield pool
    await pool.close()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", (*golden_cases(), *rare_cases()), ids=lambda case: case.name)
async def test_format_mode_and_orientation(pool: RenderPool, case: Case) -> None:
    for orientation in range(1, 9) if case.oriented else (1,):
        media = inspect(case.build(orientation), CONFIG, "p")
        assert media.header.orientation == orientation
        upright = Size(HEIGHT, WIDTH) if orientation >= 5 else Size(WIDTH, HEIGHT)
        rendered = await pool.render(media, whole(upright))
        assert (rendered.num_tiles, rendered.tile) == (1, upright)
        for seen, stored in zip(centres(rendered.pixels, upright), UPRIGHT[orientation], strict=True):
            worst = max(abs(a - b) for a, b in zip(seen, case.expected[stored], strict=True))
            assert worst <= case.tolerance, (case.name, orientation, seen, case.expected[stored])


def centres(pixels: bytes, size: Size) -> Quadrants:
    """Colours in the middle of the four quadrants."""
    points = [(x, y) for y in (size.height // 4, size.height * 3 // 4) for x in (size.width // 4, size.width * 3 // 4)]
    offsets = [(y * size.width + x) * 3 for x, y in points]
    return cast("Quadrants", tuple(tuple(pixels[offset : offset + 3]) for offset in offsets))


def as_it_is(data: bytes) -> Image.Image:
    """Rendered in this process, as it is."""
    header = read_header(data, None, FORMATS)
    size = header.upright
    pixels = render.render(data, header, whole(size))
    return Image.frombytes("RGB", (size.width, size.height), pixels)


def test_what_a_gif_frame_leaves_open_is_white() -> None:
    picture = as_it_is(pictures.gif((3, 2), (1, 1, 1, 1)))
    assert [picture.getpixel((x, y)) for y in range(2) for x in range(3)].count(WHITE) == 5
    assert picture.getpixel((1, 1)) == (10, 20, 30)


def test_a_text_chunk_cannot_make_colours_transparent() -> None:
    text = chunk(b"tEXt", b"transparency\0\0")
    plain = encoded(scene(), "png")
    for after_pixels in (False, True):
        assert as_it_is(with_chunk(plain, text, after_pixels=after_pixels)).tobytes() == scene().tobytes()


def test_only_the_first_frame_is_seen() -> None:
    first, second = Image.new("RGB", (9, 9), (200, 10, 10)), Image.new("RGB", (9, 9), (10, 10, 200))
    for image_format in ("gif", "png", "webp"):
        data = encoded(first, image_format, save_all=True, append_images=[second], lossless=True)
        assert read_header(data, None, FORMATS).frames == 2
        assert as_it_is(data).getpixel((4, 4)) == (200, 10, 10)


def test_black_rows_at_the_end_are_rows() -> None:
    black = Image.new("RGB", (5, 5))
    for mode in ("RGB", "L", "1", "P", "RGBA"):
        assert as_it_is(encoded(black.convert(mode), "png")).size == (5, 5)


def test_a_header_of_another_size_is_refused() -> None:
    data = encoded(scene(), "png")
    other = read_header(encoded(scene(size=(64, 47)), "png"), None, FORMATS)
    with pytest.raises(MediaUndecodable):
        decode.verify(data, other)


def test_execute_cuts_in_reading_order_with_the_overview_last() -> None:
    picture = quartered("RGB", RGB)
    tile = Size(24, 16)
    overview = View((Resize(tile, Filter.LANCZOS),))
    pixels = render.execute(picture, RenderRecipe(tile, (View((), columns=2, rows=2), overview)))
    tile_bytes = 24 * 16 * 3
    tiles = [pixels[start : start + tile_bytes] for start in range(0, len(pixels), tile_bytes)]
    assert [tile[:3] for tile in tiles[:4]] == [bytes(colour) for colour in RGB]
    assert tiles[4] == picture.resize((24, 16), Image.Resampling.LANCZOS).tobytes()


def test_what_views_have_in_common_is_done_once() -> None:
    noise = scene(size=(90, 70))
    first, second = Resize(Size(40, 30), Filter.BICUBIC), Resize(Size(20, 10), Filter.BILINEAR)
    both = RenderRecipe(Size(20, 10), (View((first,), 2, 3), View((first, second))))
    small = noise.resize((40, 30), Image.Resampling.BICUBIC)
    assert render.execute(noise, both)[-600:] == small.resize((20, 10), Image.Resampling.BILINEAR).tobytes()
    made = sorted(both.work(Size(90, 70)), key=lambda size: size.area)
    assert made == [Size(20, 10), Size(20, 30), Size(40, 30), Size(40, 70)]


@pytest.mark.parametrize("outside", [BLACK, (1, 2, 3)])
def test_a_window_crops_and_pads(outside: Colour) -> None:
    picture = Image.new("RGB", (4, 2), (9, 9, 9))
    shown = render.execute(picture, RenderRecipe(Size(3, 4), (View((Window(2, -1, Size(3, 4), outside),)),)))
    rows = [[tuple(shown[(y * 3 + x) * 3 :][:3]) for x in range(3)] for y in range(4)]
    empty, row = [outside] * 3, [(9, 9, 9), (9, 9, 9), outside]
    assert rows == [empty, row, row, empty]


def test_a_recipe_whose_views_are_no_tiles_is_refused() -> None:
    tile = Size(4, 4)
    for steps, columns in (((), 2), ((Resize(Size(8, 4), Filter.BOX),), 1), ((Window(0, 0, Size(4, 8)),), 1)):
        with pytest.raises(ValueError, match="gives no tiles"):
            RenderRecipe(tile, (View(steps, columns),)).check(tile)
