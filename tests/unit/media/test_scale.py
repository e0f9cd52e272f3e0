"""Pictures scaled down and written anew, by a real worker."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from io import BytesIO
from typing import cast

import pytest
import pytest_asyncio
from PIL import Image

from opsin.core.errors import MediaTooLarge, MediaUndecodable
from opsin.media.config import MediaConfig
from opsin.media.encoding import JPEG_95, PNG, WEBP, Encoding, closest_to, encoding_of
from opsin.media.loader import inspect
from opsin.media.pool import RenderPool
from opsin.media.types import ImageFormat
from opsin.vision.plan import Size
from tests.corpus.golden import HEIGHT, RGB, UPRIGHT, WIDTH, Case, golden_cases, quartered
from tests.corpus.golden_rare import rare_cases
from tests.corpus.pictures import encoded, exif_block, scene

CONFIG = MediaConfig(render_timeout_s=60, formats=tuple(ImageFormat), render_workers=1)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pool() -> AsyncIterator[RenderPool]:
    pool = RenderPool(CONFIG)
    await pool.start()
    yield pool
    await pool.close()


def opened(data: bytes) -> Image.Image:
    picture = Image.open(BytesIO(data))
    picture.load()
    return picture


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", (*golden_cases(), *rare_cases()), ids=lambda case: case.name)
async def test_every_format_mode_and_orientation_becomes_upright_rgb(pool: RenderPool, case: Case) -> None:
    for orientation in (1, 6) if case.oriented else (1,):
        media = inspect(case.build(orientation), CONFIG, "p")
        upright = media.header.upright
        size = Size(upright.width // 2, upright.height // 2)
        written = await pool.scale(media, size, PNG)
        picture = opened(written.data)
        assert (picture.format, picture.mode, picture.size) == ("PNG", "RGB", (size.width, size.height))
        points = [
            (x, y) for y in (size.height // 4, size.height * 3 // 4) for x in (size.width // 4, size.width * 3 // 4)
        ]
        for point, stored in zip(points, UPRIGHT[orientation], strict=True):
            seen = cast("tuple[int, int, int]", picture.getpixel(point))
            assert max(abs(a - b) for a, b in zip(seen, case.expected[stored], strict=True)) <= case.tolerance


@pytest.mark.asyncio(loop_scope="module")
async def test_it_is_a_picture_of_its_own(pool: RenderPool) -> None:
    """Hash, header and bytes belong together, and its place in the request stays."""
    exif = b"Exif\0\0" + exif_block(6)
    source = encoded(scene(size=(64, 48)), "jpeg", exif=exif, icc_profile=bytes(500), comment=b"secret")
    media = inspect(source, CONFIG, "messages.0.content.1.image_url")
    written = await pool.scale(media, Size(24, 32), closest_to(media.header.format))
    assert inspect(written.data, CONFIG, media.param) == written
    assert written.sha256 == hashlib.sha256(written.data).hexdigest() != media.sha256
    assert written.header.size == Size(24, 32)
    assert written.base64 is None
    assert not [left for left in (b"secret", b"Exif", b"ICC_PROFILE") if left in written.data]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_png_keeps_nothing_of_its_source_but_pixels(pool: RenderPool) -> None:
    source = encoded(quartered("RGB", RGB).quantize(), "png", icc_profile=bytes(500), dpi=(72, 72))
    written = await pool.scale(inspect(source, CONFIG, "p"), Size(WIDTH // 2, HEIGHT // 2), PNG)
    assert opened(written.data).info == {}


@pytest.mark.asyncio(loop_scope="module")
async def test_jpeg_is_written_without_subsampling_and_close_to_its_pixels(pool: RenderPool) -> None:
    source = quartered("RGB", RGB)
    written = await pool.scale(inspect(encoded(source, "png"), CONFIG, "p"), Size(*source.size), JPEG_95)
    picture = opened(written.data)
    layers = cast("list[tuple[int, int, int, int]]", picture.layer)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] of JpegImageFile
    assert {layer[1:3] for layer in layers} == {(1, 1)}
    differences = zip(picture.tobytes(), source.tobytes(), strict=True)
    assert max(abs(a - b) for a, b in differences) < 24


@pytest.mark.asyncio(loop_scope="module")
async def test_the_pixels_are_lanczos(pool: RenderPool) -> None:
    source = scene(size=(60, 40))
    written = await pool.scale(inspect(encoded(source, "png"), CONFIG, "p"), Size(31, 20), PNG)
    assert opened(written.data).tobytes() == source.resize((31, 20), Image.Resampling.LANCZOS).tobytes()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("size", [(1, 1), (1, 60), (60, 1), (61, 59)])
async def test_noise_of_any_shape_is_within_the_answer(pool: RenderPool, size: tuple[int, int]) -> None:
    media = inspect(encoded(scene(size=(64, 64)), "png"), CONFIG, "p")
    for encoding in (JPEG_95, PNG):
        assert (await pool.scale(media, Size(*size), encoding)).header.size == Size(*size)


@pytest.mark.asyncio(loop_scope="module")
async def test_nothing_is_enlarged_by_more_than_a_block(pool: RenderPool) -> None:
    media = inspect(encoded(scene(size=(8, 8)), "png"), CONFIG, "p")
    with pytest.raises(ValueError, match="enlarges"):
        await pool.scale(media, Size(65, 1), PNG)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_damaged_picture_is_refused(pool: RenderPool) -> None:
    media = inspect(encoded(scene(), "jpeg")[:-400], CONFIG, "here")
    with pytest.raises(MediaUndecodable) as caught:
        await pool.scale(media, Size(4, 4), PNG)
    assert (caught.value.code, caught.value.param) == ("image_truncated", "here")


async def test_the_cap_on_bytes_holds_for_what_is_written() -> None:
    """A JPEG of few bytes can be a PNG of many."""
    source = encoded(scene(size=(200, 200)), "jpeg", quality=10)
    config = MediaConfig(render_workers=1, render_timeout_s=60, max_image_bytes=len(source))
    pool = RenderPool(config)
    await pool.start()
    try:
        with pytest.raises(MediaTooLarge) as caught:
            await pool.scale(inspect(source, config, "here"), Size(199, 199), PNG)
    finally:
        await pool.close()
    assert str(len(source)) in caught.value.message
    assert "199 x 199 and written as PNG" in caught.value.message
    assert caught.value.param == "here"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("encoding", [PNG, WEBP], ids=lambda encoding: encoding.name)
async def test_without_a_quality_every_pixel_stays(pool: RenderPool, encoding: Encoding) -> None:
    drawn = scene(size=(64, 48))
    written = await pool.scale(inspect(encoded(drawn, "png"), CONFIG, "p"), Size(64, 48), encoding)
    picture = opened(written.data)
    assert (picture.format, written.header.format) == (encoding.format.upper(), encoding.format)
    assert picture.convert("RGB").tobytes() == drawn.convert("RGB").tobytes()


@pytest.mark.parametrize("name", ["jpeg:1", "jpeg:85", "jpeg:100", "png", "webp-lossless"])
def test_encodings_by_the_names_that_operators_write(name: str) -> None:
    assert encoding_of(name).name == name


@pytest.mark.parametrize("name", ["jpeg", "jpeg:0", "jpeg:101", "jpeg:085", "webp", "webp:80", "PNG", ""])
def test_other_names_are_refused_with_those_that_there_are(name: str) -> None:
    with pytest.raises(ValueError, match="jpeg:QUALITY with 1 to 100, webp-lossless or png"):
        encoding_of(name)
