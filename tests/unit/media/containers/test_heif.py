"""Sizes, turns and crops of HEIC and AVIF, on files without pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pytest
from PIL import Image

from opsin.core.errors import MediaUndecodable
from opsin.media.containers import heif
from opsin.media.types import HeaderSoFar, ImageFormat, ImageHeader
from opsin.vision.plan import Size
from tests.corpus.rare import box, clap, full_box, ispe
from tests.corpus.rare import heif as made

TURNS = {  # what Pillow does for one step: irot by number of quarter turns, imir by axis
    **{("irot", turns): rotation for turns, rotation in enumerate((None, *("ROTATE_90", "ROTATE_180", "ROTATE_270")))},
    ("imir", 0): "FLIP_TOP_BOTTOM",
    ("imir", 1): "FLIP_LEFT_RIGHT",
}
FOR_EXIF = {
    **{2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE"},
    **{6: "ROTATE_270", 7: "TRANSVERSE", 8: "ROTATE_90"},
}


def _last(read: Callable[[bytes], Iterator[HeaderSoFar]], data: bytes) -> ImageHeader:
    *_, last = read(data)
    return last.header


def transposed(picture: Image.Image, name: str | None) -> Image.Image:
    return picture if name is None else picture.transpose(Image.Transpose[name])


@pytest.mark.parametrize("steps", [*product(TURNS, repeat=1), *product(TURNS, repeat=2)], ids=str)
def test_turns_and_mirrors_are_applied_in_the_order_of_the_list(steps: tuple[tuple[str, int], ...]) -> None:
    stored = Image.frombytes("L", (3, 2), bytes(range(6)))
    expected = stored
    for step in steps:
        expected = transposed(expected, TURNS[step])
    data = made(b"avif", ispe(3, 2), *(box(kind.encode(), bytes([value])) for kind, value in steps))
    header = _last(heif.read_avif, data)
    assert header.upright == Size(*expected.size)
    assert transposed(stored, FOR_EXIF.get(header.orientation)).tobytes() == expected.tobytes()


def test_the_order_is_that_of_the_list_and_not_of_the_properties() -> None:
    properties = (ispe(3, 2), box(b"imir", b"\1"), box(b"irot", b"\1"))
    assert _last(heif.read_avif, made(b"avif", *properties)).orientation == 5
    assert _last(heif.read_avif, made(b"avif", *properties, order=(1, 3, 2))).orientation == 7


def test_a_crop_of_padding_is_the_size() -> None:
    header = _last(heif.read_heic, made(b"heic", ispe(128, 64), clap(66, 33), box(b"irot", b"\1")))
    assert header == ImageHeader(ImageFormat.HEIC, Size(66, 33), 8, 1)
    with pytest.raises(MediaUndecodable):
        _last(heif.read_heic, made(b"heic", ispe(128, 64), clap(64, 33)))


def test_only_the_primary_picture_counts() -> None:
    """Properties of item 2 stand in the same table, in front of those of item 1."""
    associations = b"\0\0\0\2" + b"\0\2\2\x81\x83" + b"\0\1\1\x82"
    iprp = box(b"iprp", box(b"ipco", ispe(9, 9), ispe(3, 2), box(b"irot", b"\2")), full_box(b"ipma", associations))
    meta = full_box(b"meta", full_box(b"pitm", b"\0\1"), iprp)
    header = _last(heif.read_heic, box(b"ftyp", b"heic", bytes(4)) + meta)
    assert (header.size, header.orientation) == (Size(3, 2), 1)


def test_wide_numbers_of_items_and_properties() -> None:
    associations = b"\0\0\0\1" + b"\0\0\0\7" + b"\1" + b"\x80\1"
    iprp = box(b"iprp", box(b"ipco", ispe(3, 2)), full_box(b"ipma", associations, version=1, flags=1))
    meta = full_box(b"meta", full_box(b"pitm", b"\0\0\0\7", version=1), iprp)
    assert _last(heif.read_heic, box(b"ftyp", b"heic", bytes(4)) + meta).size == Size(3, 2)


def test_a_table_that_names_one_picture_again_and_again_is_damage() -> None:
    """700 times with 255 properties each, in 180 KB, took 0.7 s."""
    many = b"".join(b"\0\1" + bytes([255]) + b"\1" * 255 for _ in range(2))
    iprp = box(b"iprp", box(b"ipco", ispe(3, 2)), full_box(b"ipma", b"\0\0\0\2" + many))
    meta = full_box(b"meta", full_box(b"pitm", b"\0\1"), iprp)
    with pytest.raises(MediaUndecodable):
        _last(heif.read_avif, box(b"ftyp", b"avif\0\0\0\0") + meta)


def test_frames_are_the_samples_of_the_first_track() -> None:
    samples = full_box(b"stsz", bytes(4), b"\0\0\0\5")
    track = box(b"trak", box(b"mdia", box(b"minf", box(b"stbl", samples))))
    assert _last(heif.read_avif, made(b"avis", ispe(3, 2), behind=box(b"moov", track))).frames == 5
    assert _last(heif.read_avif, made(b"avis", ispe(3, 2), behind=box(b"moov"))).frames == 1
