"""HEIC and AVIF: the primary picture of a file, its size and how it is turned (ISO 23008-12; AVIF 1.1).

Orientation stands in properties of the picture, ``irot`` and ``imir``, never in its EXIF. Apart from the codec the two
formats differ in who turns the pixels: for HEIC the decoder does, for AVIF it leaves that to us.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from opsin.media.containers import MAX_CHUNKS
from opsin.media.containers.boxes import FULL_BOX_BYTES, Box, boxes, children, find, number
from opsin.media.types import HeaderSoFar, ImageFormat, ImageHeader
from opsin.media.undecodable import Failure, undecodable
from opsin.vision.plan import Size

_MAX_TABLES = 4  # of properties; one for each way of writing them
_MAX_PROPERTIES = 255  # of one picture, as one byte counts them; tables that name it again and again took 3 s a MiB
_MAX_PADDING = 63  # encoders round sides up to blocks of up to 64 pixels, and crop the picture out of them
_UPRIGHT = 1

_Matrix = tuple[int, int, int, int]
_MATRICES: dict[int, _Matrix] = {
    **{1: (1, 0, 0, 1), 2: (-1, 0, 0, 1), 3: (-1, 0, 0, -1), 4: (1, 0, 0, -1)},
    **{5: (0, 1, 1, 0), 6: (0, -1, 1, 0), 7: (0, -1, -1, 0), 8: (0, 1, -1, 0)},
}
"""What an EXIF orientation does to the coordinates of a pixel, y downwards: (x, y) becomes (ax + by, cx + dy)."""
_ORIENTATIONS = {matrix: orientation for orientation, matrix in _MATRICES.items()}
_TURNED = (1, 8, 3, 6)  # irot: so many quarter turns anticlockwise
_MIRRORED = (4, 2)  # imir: top and bottom exchanged, left and right exchanged


@dataclass(frozen=True, slots=True)
class _Picture:
    """What the properties of an item say, in their order, so far."""

    size: Size | None = None
    orientation: int = _UPRIGHT
    is_cropped: bool = False


def read_heic(data: bytes) -> Iterator[HeaderSoFar]:
    """The header of a HEIC file. A file with several pictures counts as its primary one."""
    for picture, size in _described(data):
        yield HeaderSoFar(ImageHeader(ImageFormat.HEIC, size, picture.orientation, frames=1), is_settled=True)


def read_avif(data: bytes) -> Iterator[HeaderSoFar]:
    """The header of an AVIF file. No decoder crops one, but browsers do, so a crop is refused."""
    for picture, size in _described(data):
        if picture.is_cropped:
            raise undecodable(Failure.UNSUPPORTED)
        header = ImageHeader(ImageFormat.AVIF, size, picture.orientation, frames=1)
        yield HeaderSoFar(header, is_settled=True)
        yield HeaderSoFar(replace(header, frames=_frames(data)), is_settled=True)


def _described(data: bytes) -> Iterator[tuple[_Picture, Size]]:
    """The primary picture, where the first description comes; then to the end, to see whether the file was cut."""
    is_described = False
    for box in boxes(data, 0, len(data)):
        if box.kind == b"meta" and not is_described:
            is_described = True
            yield _primary(data, box)
    if not is_described:
        raise undecodable(Failure.UNDECODABLE)


def _primary(data: bytes, meta: Box) -> tuple[_Picture, Size]:
    inside = {box.kind: box for box in reversed(list(children(data, meta, FULL_BOX_BYTES)))}
    if not {b"pitm", b"iprp"} <= inside.keys():
        raise undecodable(Failure.UNDECODABLE)
    picture = _Picture()
    for count, prop in enumerate(_properties(data, inside[b"iprp"], _item_id(data, inside[b"pitm"])), 1):
        if count > _MAX_PROPERTIES:
            raise undecodable(Failure.UNDECODABLE)
        picture = _with(picture, data, prop)
    if picture.size is None:
        raise undecodable(Failure.UNDECODABLE)
    return picture, picture.size


def _item_id(data: bytes, box: Box) -> int:
    """Of a full box that starts with one."""
    version = number(data, box.start, 1, box.end)
    return number(data, box.start + FULL_BOX_BYTES, 2 if version == 0 else 4, box.end)


def _properties(data: bytes, iprp: Box, item: int) -> Iterator[Box]:
    """Those of an item, in the order in which they are to be applied."""
    inside = list(children(data, iprp))
    container = find(iter(inside), b"ipco")
    known = list(children(data, container)) if container else []
    tables = [box for box in inside if box.kind == b"ipma"]
    for table in tables[:_MAX_TABLES]:
        for index in _associated(data, table, item):
            if 0 < index <= len(known):
                yield known[index - 1]


def _associated(data: bytes, box: Box, item: int) -> Iterator[int]:
    """Numbers of the properties of an item, out of the list of all items."""
    head = number(data, box.start, FULL_BOX_BYTES, box.end)
    id_bytes = 2 if head >> 24 == 0 else 4
    index_bytes = 2 if head & 1 else 1
    is_essential = 1 << (8 * index_bytes - 1)
    position = box.start + FULL_BOX_BYTES
    count = number(data, position, 4, box.end)
    position += 4
    for _ in range(min(count, MAX_CHUNKS)):
        found = number(data, position, id_bytes, box.end)
        properties = number(data, position + id_bytes, 1, box.end)
        position += id_bytes + 1
        end = position + properties * index_bytes
        if found == item:
            for at in range(position, end, index_bytes):
                yield number(data, at, index_bytes, box.end) & ~is_essential
        position = end


def _with(picture: _Picture, data: bytes, prop: Box) -> _Picture:
    """The picture with one more property applied."""
    match prop.kind:
        case b"ispe":
            width, height = (number(data, prop.start + FULL_BOX_BYTES + at, 4, prop.end) for at in (0, 4))
            return replace(picture, size=Size(width, height))
        case b"clap":
            return _cropped(picture, data, prop)
        case b"irot":
            return _turned(picture, _TURNED[number(data, prop.start, 1, prop.end) & 3])
        case b"imir":
            return _turned(picture, _MIRRORED[number(data, prop.start, 1, prop.end) & 1])
        case _:
            return picture


def _cropped(picture: _Picture, data: bytes, prop: Box) -> _Picture:
    """Four fractions: width, height and two offsets. Whole pixels only, after the size and before any turn, as MIAF
    has it."""
    width, width_parts, height, height_parts = (number(data, prop.start + at, 4, prop.end) for at in (0, 4, 8, 12))
    is_whole = width_parts and height_parts and width % width_parts == 0 and height % height_parts == 0
    if picture.size is None or not is_whole or picture.orientation != _UPRIGHT:
        raise undecodable(Failure.UNSUPPORTED)
    size = Size(width // width_parts, height // height_parts)
    if max(picture.size.width - size.width, picture.size.height - size.height) > _MAX_PADDING:
        raise undecodable(Failure.UNSUPPORTED)  # else limits would see the part, and the decoder the whole
    return replace(picture, size=size, is_cropped=True)


def _turned(picture: _Picture, orientation: int) -> _Picture:
    a, b, c, d = _MATRICES[orientation]
    e, f, g, h = _MATRICES[picture.orientation]
    both = (a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h)
    return replace(picture, orientation=_ORIENTATIONS[both])


_TO_SAMPLES = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsz")


def _frames(data: bytes) -> int:
    """Samples of the first track; 1 without one."""
    box: Box | None = Box(b"", 0, len(data))
    for kind in _TO_SAMPLES:
        box = find(children(data, box), kind)
        if box is None:
            return 1
    return max(1, number(data, box.start + FULL_BOX_BYTES + 4, 4, box.end))
