from __future__ import annotations

import re
import struct
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsin.core.errors import MediaUndecodable, UnsupportedMediaType
from opsin.media.config import ACCEPTED_BY_DEFAULT as FORMATS
from opsin.media.containers import exif
from opsin.media.header import read_header, read_start
from opsin.media.types import HeaderSoFar, ImageFormat, ImageHeader
from opsin.vision.plan import Size
from tests.corpus import pictures
from tests.corpus.pictures import GoodPicture, chunk, encoded, exif_block, idat, ihdr, png, scene, segment, with_chunk
from tests.corpus.rare import rare_good_pictures

GOOD = (*pictures.good_pictures(), *rare_good_pictures())
GOOD_DATA = [picture.data for picture in GOOD]


@pytest.mark.parametrize("picture", GOOD, ids=lambda picture: picture.name)
def test_the_size_of_every_good_picture_is_its_upright_size(picture: GoodPicture) -> None:
    header = read_header(picture.data, "p", tuple(ImageFormat))
    assert (header.upright.width, header.upright.height) == picture.size
    assert header.format.value == picture.name.split()[0].replace("apng", "png")
    assert header.frames == (3 if re.search("animated|apng|three", picture.name) else 1)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_in_every_container(orientation: int, order: str) -> None:
    block = exif_block(orientation, order)
    plain = encoded(scene(), "png")
    files = [
        encoded(scene(), "jpeg", exif=b"Exif\0\0" + block),
        encoded(scene(), "webp", exif=block),
        encoded(scene(), "webp", exif=b"Exif\0\0" + block),
        with_chunk(plain, chunk(b"eXIf", block), after_pixels=False),
        with_chunk(plain, chunk(b"eXIf", block), after_pixels=True),
    ]
    assert [read_header(data, "p", FORMATS).orientation for data in files] == [orientation] * len(files)


def test_only_the_first_exif_segment_of_a_jpeg_counts() -> None:
    data = encoded(scene(), "jpeg")
    segments = [segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x/>")]
    segments += [segment(0xE1, b"Exif\0\0" + exif_block(number)) for number in (3, 6)]
    assert read_header(data[:2] + b"".join(segments) + data[2:], "p", FORMATS).orientation == 3


def test_webp_exif_counts_only_when_announced() -> None:
    data = bytearray(encoded(scene(), "webp", exif=exif_block(6)))
    assert data[12:16] == b"VP8X"
    data[20] &= ~0x08
    assert read_header(bytes(data), "p", FORMATS).orientation == 1


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"Exif\0\0",
        b"II*\0",
        b"XX*\0" + exif_block(6)[4:],
        exif_block(0),
        exif_block(9),
        exif_block(6)[:12],
        exif_block(6)[:20],
        b"II*\0" + struct.pack("<I", 2**31) + exif_block(6)[8:],
        b"II*\0" + struct.pack("<IHHHI4s", 8, 1, 0x0112, 2, 4, b"six\0"),
        b"II*\0" + struct.pack("<IH", 8, 65_535),
    ],
)
def test_damaged_exif_means_upright(block: bytes) -> None:
    assert exif.orientation(block) == 1


def test_orientation_as_a_long_and_behind_other_tags() -> None:
    entries = struct.pack("<HHII", 0x010F, 2, 4, 0) + struct.pack("<HHII", 0x0112, 4, 1, 8)
    assert exif.orientation(b"II*\0" + struct.pack("<IH", 8, 2) + entries) == 8


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"\0\0\0\x18ftypheic", "HEIC"),
        (b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic", "HEIC"),
        (b"\0\0\0\x18ftypmif1\0\0\0\0mif1avif", "AVIF"),
        (b"\0\0\0\x18ftypisom", "MP4"),
        (b"\xef\xbb\xbf  <svg/>", "SVG"),
        (b"<?xml version='1.0'?><rss/>", "XML"),
        (b"<HTML>", "HTML"),
        (b"%PDF-1.4", "PDF"),
        (b"\xc5\xd0\xd3\xc6", "EPS"),
        (b"MM\0*", "TIFF"),
        (b"BM\0\0\0\0\0\0\0\0", "BMP"),
        (b"8BPS", "PSD"),
        (b"SIMPLE  = T", "FITS"),
        (b"\0\0\1\0", "ICO"),
    ],
)
def test_foreign_formats_are_named(data: bytes, name: str) -> None:
    with pytest.raises(UnsupportedMediaType, match=_refusal(name)) as caught:
        read_header(data, "here", FORMATS)
    assert caught.value.param == "here"


def _refusal(name: str) -> str:
    by_this_server = " by this server" if name.lower() in list(ImageFormat) else ""
    return rf"^{name} is not accepted{by_this_server}; accepted are JPEG, PNG, WebP and GIF \(media.formats\)"


def test_the_error_of_a_container_carries_the_place_in_the_request() -> None:
    with pytest.raises(MediaUndecodable) as caught:
        read_header(b"\xff\xd8\xff\xd9", "here", FORMATS)
    assert caught.value.param == "here"


def test_gif_size_covers_screen_and_first_frame() -> None:
    assert read_header(pictures.gif((5, 9), (3, 4, 6, 2)), "p", FORMATS).size == Size(9, 9)


def test_gif_frames_beyond_the_bounded_walk_are_not_counted() -> None:
    one = pictures.gif((1, 1), (0, 0, 1, 1))
    many = one[:-1] + one[19:-1] * 40_000 + b"\x3b"
    assert 10_000 < read_header(many, "p", FORMATS).frames < 40_000


def test_apng_frames_come_from_actl_before_the_pixels() -> None:
    control = chunk(b"acTL", struct.pack(">II", 7, 0))
    pixels = idat([bytes(3)])
    assert read_header(png(ihdr(1, 1), control, pixels), "p", FORMATS) == ImageHeader(ImageFormat.PNG, Size(1, 1), 1, 7)
    assert read_header(png(ihdr(1, 1), pixels, control), "p", FORMATS).frames == 1


MAGIC_BYTES = 64
"""Enough to tell any format."""


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(GOOD_DATA), st.data())
def test_a_start_says_nothing_or_the_truth(data: bytes, draw: st.DataObject) -> None:
    whole = read_header(data, "p", tuple(ImageFormat))
    found = read_start(data[: draw.draw(st.integers(MAGIC_BYTES, len(data)))], "p", tuple(ImageFormat))
    if found is not None:
        assert (found.header.format, found.header.size) == (whole.format, whole.size)
        assert not found.is_settled or found.header.orientation == whole.orientation
    assert read_start(data, "p", tuple(ImageFormat)) == HeaderSoFar(whole, is_settled=True)


@pytest.mark.parametrize(
    ("image_format", "block", "is_settled"),
    [
        ("jpeg", b"", True),
        ("jpeg", b"Exif\0\0" + exif_block(6), True),
        ("webp", b"", True),
        ("webp", exif_block(6), False),
        ("png", b"", False),
        ("gif", b"", True),
    ],
)
def test_whether_what_follows_the_first_pixels_can_turn_the_picture(
    image_format: str, block: bytes, is_settled: bool
) -> None:
    data = encoded(scene("P" if image_format == "gif" else "RGB"), image_format, **({"exif": block} if block else {}))
    found = read_start(data[: len(data) // 2], "p", FORMATS)
    assert found is not None
    assert (found.header.size, found.is_settled) == (read_header(data, "p", FORMATS).size, is_settled)


def test_a_start_that_cannot_become_a_picture_is_refused() -> None:
    for data, error in (
        (b"%PDF-1.4 and so on", UnsupportedMediaType),
        (pictures.SIGNATURE + ihdr(0, 5) + bytes(4), MediaUndecodable),
        (b"\xff\xd8\xff\xe0\0\1" + bytes(99), MediaUndecodable),
    ):
        with pytest.raises(error) as caught:
            read_start(data, "here", FORMATS)
        assert caught.value.param == "here"


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xd8" + b"\xff" * 5_000_000 + b"\x00",
        b"\xff\xd8\xff\xe0\x00\x02" + b"\xff\xe0\x00\x02" * 1_000_000,
        pictures.SIGNATURE + ihdr(1, 1) + bytes(4) + b"tEXt" + bytes(5_000_000),
        pictures.riff(pictures.canvas(1, 1), *[pictures.riff_chunk(b"ABCD", b"")] * 200_000),
        pictures.gif((1, 1), (0, 0, 1, 1))[:-1] + b"\x21\xfe" + b"\x01x" * 2_000_000,
    ],
    ids=["jpeg fill bytes", "jpeg segments", "png chunks", "webp chunks", "gif sub-blocks"],
)
def test_walks_are_bounded(data: bytes) -> None:
    assert_is_quick(data)


def assert_is_quick(data: bytes) -> None:
    start = time.process_time()
    with suppress(MediaUndecodable):
        read_header(data, "p", tuple(ImageFormat))
    assert time.process_time() - start < 0.5


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(GOOD_DATA), st.data())
def test_damage_anywhere_is_a_header_or_a_media_error(data: bytes, draw: st.DataObject) -> None:
    damaged = bytearray(data[: draw.draw(st.integers(0, len(data)))])
    for position in draw.draw(st.lists(st.integers(0, max(0, len(damaged) - 1)), max_size=5)) if damaged else []:
        damaged[position] = draw.draw(st.integers(0, 255))
    try:
        read_header(bytes(damaged), "p", tuple(ImageFormat))
    except (MediaUndecodable, UnsupportedMediaType) as error:
        assert error.param == "p"
