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
from opsin.vision.plan import RenderRecipe, Size
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
