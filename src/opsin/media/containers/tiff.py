"""TIFF and BigTIFF: a chain of directories, one for each page (TIFF 6.0). The first page counts."""

from __future__ import annotations

from collections.abc import Iterator

from opsin.media.containers import MAX_CHUNKS
from opsin.media.containers.exif import ORIENTATION, valid_orientation
from opsin.media.containers.ifd import Directory, Layout, first_at, layout_of, read_directory
from opsin.media.types import HeaderSoFar, ImageFormat, ImageHeader
from opsin.media.undecodable import Failure, undecodable
from opsin.vision.plan import Size

_KIND, _WIDTH, _HEIGHT = 254, 256, 257
_TAGS = frozenset({_KIND, _WIDTH, _HEIGHT, ORIENTATION})
_REDUCED = 0x1
"""A page that is a smaller version of another one: a camera's raw file shows only that to whoever cannot read it."""


def read(data: bytes) -> Iterator[HeaderSoFar]:
    """The header of a TIFF file. Pages beyond a bounded walk do not count, nor does a chain that bites its tail."""
    layout = layout_of(data)
    position = first_at(data, layout) if layout else None
    if layout is None or position is None:
        raise undecodable(Failure.TRUNCATED)
    first = _first(data, position, layout)
    width, height = first.values.get(_WIDTH), first.values.get(_HEIGHT)
    if width is None or height is None:
        raise undecodable(Failure.UNDECODABLE)
    if first.values.get(_KIND, 0) & _REDUCED:
        raise undecodable(Failure.UNSUPPORTED)
    orientation = valid_orientation(first.values.get(ORIENTATION))
    pages = _pages(data, position, first, layout)
    yield HeaderSoFar(ImageHeader(ImageFormat.TIFF, Size(width, height), orientation, pages), is_settled=True)


def _first(data: bytes, position: int, layout: Layout) -> Directory:
    directory = read_directory(data, position, layout, _TAGS)
    if directory is None or not directory.is_whole:
        raise undecodable(Failure.TRUNCATED)
    return directory


def _pages(data: bytes, position: int, first: Directory, layout: Layout) -> int:
    seen = {position}
    next_at = first.next_at
    while next_at not in seen and next_at != 0 and len(seen) < MAX_CHUNKS:
        directory = read_directory(data, next_at, layout, frozenset())
        if directory is None or not directory.is_whole:
            break
        seen.add(next_at)
        next_at = directory.next_at
    return len(seen)
