"""Public cases of section 2F: files of which somebody else's server saw other pixels than everybody else."""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio
from PIL import Image

from opsin.media.config import MediaConfig
from opsin.media.encoding import PNG
from opsin.media.loader import inspect
from opsin.media.messages import Done, Written
from opsin.media.pool import RenderPool, is_file_of
from opsin.media.types import ImageFormat, ImageHeader
from opsin.vision.plan import Size
from tests.attacks.decoding import ask, pixels_of, refusal
from tests.corpus.pictures import GREY, animation, chunk, encoded, exif_block, idat, ihdr, png, scene, with_chunk
from tests.corpus.rare import small_heic
from tests.integration.gateways import Served, gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG = MediaConfig(formats=tuple(ImageFormat), render_timeout_s=60)
WHITE = (255, 255, 255)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def attacked() -> AsyncGenerator[Served]:
    async with gateway(media={"formats": list(ImageFormat), "render_timeout_s": 60}) as served:
        yield served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncGenerator[RenderPool]:
    pool = RenderPool(CONFIG)
    await pool.start()
    yield pool
    await pool.close()


async def colours(pool: RenderPool, data: bytes) -> set[tuple[int, ...]]:
    _, pixels = await pixels_of(pool, data, CONFIG)
    return set(zip(pixels[::3], pixels[1::3], pixels[2::3], strict=True))


async def test_case_83_a_moderator_and_the_model_see_one_picture(attacked: Served, pool: RenderPool) -> None:
    """EXIF and tRNS told one thing to who checked and another to the model."""
    turned = encoded(scene(size=(24, 16)), "jpeg", exif=b"Exif\0\0" + exif_block(6))
    assert (await ask(attacked, turned))["opsin"]["images"] == [{"format": "jpeg", "width": 16, "height": 24}]
    hidden = encoded(Image.new("P", (4, 4)), "png", transparency=0)
    assert await colours(pool, hidden) == {WHITE}


@pytest.mark.parametrize("image_format", ["jpeg", "png", "webp"])
async def test_case_84_every_orientation_of_every_format(pool: RenderPool, image_format: str) -> None:
    """One red corner comes to the corner that the EXIF standard says."""
    stored = Image.new("RGB", (32, 16), "white")
    stored.paste((255, 0, 0), (0, 0, 16, 8))
    corners = {1: (0, 0), 2: (1, 0), 3: (1, 1), 4: (0, 1), 5: (0, 0), 6: (1, 0), 7: (1, 1), 8: (0, 1)}
    for orientation, (right, bottom) in corners.items():
        size, pixels = await pixels_of(pool, _oriented(stored, image_format, orientation), CONFIG)
        assert size == (Size(16, 32) if orientation >= 5 else Size(32, 16))
        picture = Image.frombytes("RGB", (size.width, size.height), pixels)
        for x, y in ((0, 0), (1, 0), (0, 1), (1, 1)):
            _, green, _ = picture.getpixel((x * (size.width - 1), y * (size.height - 1)))  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType] of RGB
            assert (green < 128) == ((x, y) == (right, bottom)), (image_format, orientation)


def _oriented(picture: Image.Image, image_format: str, orientation: int) -> bytes:
    block = exif_block(orientation)
    match image_format:
        case "jpeg":
            return encoded(picture, "jpeg", quality=95, subsampling=0, exif=b"Exif\0\0" + block)
        case "png":
            return with_chunk(encoded(picture, "png"), chunk(b"eXIf", block), after_pixels=True)
        case _:
            return encoded(picture, "webp", lossless=True, exif=block)


async def test_case_85_what_is_transparent_is_white_whatever_lies_under_it(pool: RenderPool) -> None:
    """Elsewhere black, or what an editor left there."""
    for hidden in ((0, 0, 0, 0), (13, 200, 7, 0)):
        picture = Image.new("RGBA", (4, 4), hidden)
        assert await colours(pool, encoded(picture, "png")) == {WHITE}
        assert await colours(pool, encoded(picture, "webp", lossless=True, exact=True)) == {WHITE}


async def test_case_87_of_16_bits_the_upper_8_count(pool: RenderPool) -> None:
    """Elsewhere all of it is white."""
    grey = png(ihdr(4, 4, 16, GREY), idat([struct.pack(">H", 20_000) * 4] * 4))
    assert await colours(pool, grey) == {(78, 78, 78)}


@pytest.mark.parametrize("image_format", ["gif", "png", "webp", "mpo", "tiff", "avif"])
async def test_case_88_the_frames_that_nobody_sees_are_declared(attacked: Served, image_format: str) -> None:
    """Elsewhere the first one is used in silence."""
    (image,) = (await ask(attacked, animation(image_format)))["opsin"]["images"]
    assert (image["frames"], image["frames_used"]) == (3, 1)
    assert (image["width"], image["height"]) == (16, 12)


async def test_case_88_a_picture_of_one_frame_declares_none(attacked: Served) -> None:
    (image,) = (await ask(attacked, encoded(scene(), "gif")))["opsin"]["images"]
    assert image == {"format": "gif", "width": 64, "height": 48}


@pytest.mark.parametrize("percent", [10, 50, 99])
@pytest.mark.parametrize("image_format", ["jpeg", "png", "webp", "gif", "bmp", "tiff", "avif", "heic"])
async def test_case_89_half_a_picture_is_none(attacked: Served, image_format: str, percent: int) -> None:
    """A process-wide switch had half a JPEG answered as if it were whole."""
    data = small_heic() if image_format == "heic" else encoded(scene(), image_format)
    assert (await refusal(attacked, data[: len(data) * percent // 100]))[:2] == (422, "image_truncated")


async def test_case_90_a_phones_picture_is_called_by_its_name() -> None:
    """HEIC under the name of a JPEG got any error but this one."""
    async with gateway() as served:
        status, code, message = await refusal(served, b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(64))
    assert (status, code) == (415, "unsupported_image_format")
    assert message == "HEIC is not accepted by this server; accepted are JPEG, PNG, WebP and GIF (media.formats)."


async def test_case_91_a_drawing_in_svg_is_called_by_its_name_and_nothing_else(attacked: Served) -> None:
    """``cannot identify … at 0x112cb4040`` elsewhere."""
    svg = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><script>alert(1)</script></svg>'
    status, code, message = await refusal(attacked, svg)
    assert (status, code) == (415, "unsupported_image_format")
    assert message.startswith("SVG is not accepted; accepted are JPEG")


async def test_what_a_worker_writes_is_judged_like_a_strangers_file(pool: RenderPool) -> None:
    """A picture that took its worker over could send anything to the engine behind: another format, size or frame."""
    media = inspect(encoded(scene(size=(64, 48)), "jpeg", exif=b"Exif\0\0" + exif_block(6)), CONFIG, "p")
    asked = ImageHeader(ImageFormat.PNG, Size(24, 32), orientation=1, frames=1)
    written = (await pool.scale(media, asked.size, PNG)).data
    assert is_file_of(Written(written), asked)
    forged = (
        media.data,
        written[:-1],
        encoded(scene(size=(24, 33)), "png"),
        encoded(scene(size=(24, 32)), "png", exif=exif_block(6)),
        encoded(scene(size=(24, 32)), "png", save_all=True, append_images=[scene(size=(24, 32)).rotate(180)]),
        b"<svg/>",
        b"",
    )
    assert not [data for data in forged if is_file_of(Written(data), asked)]
    assert not is_file_of(Done(written), asked)
