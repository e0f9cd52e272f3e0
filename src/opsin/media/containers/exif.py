"""The orientation tag of an EXIF block (a TIFF header and its first directory). Knows nothing else of EXIF.

A damaged block means orientation 1, as in browsers: metadata must not make a good picture unusable.
"""

from __future__ import annotations

from opsin.media.containers.ifd import first_at, layout_of, read_directory

EXIF_PREFIX = b"Exif\0\0"
ORIENTATION = 0x0112
_TAGS = frozenset({ORIENTATION})


def orientation(block: bytes) -> int:
    """EXIF orientation, 1 to 8; 1 when absent or unreadable. ``block`` may start with the ``Exif`` prefix of JPEG."""
    tiff = block.removeprefix(EXIF_PREFIX)
    layout = layout_of(tiff)
    position = first_at(tiff, layout) if layout else None
    directory = read_directory(tiff, position, layout, _TAGS) if layout and position is not None else None
    return valid_orientation(directory.values.get(ORIENTATION) if directory else None)


def valid_orientation(value: int | None) -> int:
    """``value``, or 1 if it is none of 1 to 8."""
    return value if value is not None and 1 <= value <= 8 else 1
