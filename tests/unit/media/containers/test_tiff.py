from __future__ import annotations

import struct

import pytest

from opsin.core.errors import MediaUndecodable
from opsin.media.containers import tiff
from opsin.media.types import ImageHeader
from opsin.vision.plan import Size
from tests.corpus.golden_rare import tiff as made
from tests.corpus.rare import GREY

PAGE = made(GREY, bytes(48 * 32))
FIRST_AT = 8 + 48 * 32


def chained(*next_at: int) -> bytes:
    """Small directories behind each other, each of which says where the next one is."""
    entries = struct.pack("<HHII", 256, 3, 1, 3) + struct.pack("<HHII", 257, 3, 1, 2)
    directories = [struct.pack("<H", 2) + entries + struct.pack("<I", at) for at in next_at]
    return b"II*\0" + struct.pack("<I", 8) + b"".join(directories)


def _read(data: bytes) -> ImageHeader:
    *_, last = tiff.read(data)
    return last.header


DIRECTORY_BYTES = 2 + 2 * 12 + 4


def test_pages_are_counted_to_the_end_of_the_chain() -> None:
    second, third = 8 + DIRECTORY_BYTES, 8 + 2 * DIRECTORY_BYTES
    assert _read(chained(0)).frames == 1
    assert _read(chained(second, third, 0)).frames == 3
    assert _read(chained(third, 0, second)).frames == 3, "in any order"


def test_a_chain_that_bites_its_tail_or_leaves_the_file_ends() -> None:
    assert _read(chained(8)).frames == 1
    assert _read(chained(8 + DIRECTORY_BYTES, 8)).frames == 2
    assert _read(chained(2**32 - 1)).frames == 1


def test_the_pages_that_are_counted_are_bounded() -> None:
    pages = [8 + number * DIRECTORY_BYTES for number in range(1, 25_000)]
    assert _read(chained(*pages, 0)).frames == 20_000


@pytest.mark.parametrize(("kind", "packed"), [(1, "B"), (3, "H"), (4, "I")])
def test_sizes_of_any_whole_type(kind: int, packed: str) -> None:
    width = struct.pack("<HHI", 256, kind, 1) + struct.pack(f"<{packed}", 200).ljust(4, b"\xaa")
    height = struct.pack("<HHII", 257, 4, 1, 70_000)
    data = b"II*\0" + struct.pack("<IH", 8, 2) + width + height + bytes(4)
    assert _read(data).size == Size(200, 70_000)


def test_the_first_entry_of_a_tag_counts() -> None:
    entries = b"".join(struct.pack("<HHII", *entry) for entry in ((256, 3, 1, 5), (256, 3, 1, 9), (257, 3, 1, 7)))
    assert _read(b"II*\0" + struct.pack("<IH", 8, 3) + entries + bytes(4)).size == Size(5, 7)


@pytest.mark.parametrize("end", [4, 7, FIRST_AT + 1, FIRST_AT + 30, len(PAGE) - 1])
def test_a_file_that_ends_in_its_first_directory_is_truncated(end: int) -> None:
    with pytest.raises(MediaUndecodable) as caught:
        _read(PAGE[:end])
    assert caught.value.code == "image_truncated"
