"""The orientation tag of an EXIF block (a TIFF header and its first directory). Knows nothing else of EXIF.

A damaged block means orientation 1, as in browsers: metadata must not make a good picture unusable.
"""

from __future__ import annotations

import struct

EXIF_PREFIX = b"Exif\0\0"
_BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_ORIENTATION_TAG = 0x0112
_VALUE_FORMATS = {1: "B", 3: "H", 4: "I"}  # TIFF types BYTE, SHORT, LONG


def orientation(block: bytes) -> int:
    """EXIF orientation, 1 to 8; 1 when absent or unreadable. ``block`` may start with the ``Exif`` prefix of JPEG."""
    tiff = block.removeprefix(EXIF_PREFIX)
    order = _BYTE_ORDERS.get(tiff[:4])
    if order is None or len(tiff) < 8:
        return 1
    (directory,) = struct.unpack_from(f"{order}I", tiff, 4)
    if directory + 2 > len(tiff):
        return 1
    (declared,) = struct.unpack_from(f"{order}H", tiff, directory)
    present = min(declared, (len(tiff) - directory - 2) // 12)
    entries = tiff[directory + 2 : directory + 2 + 12 * present]
    for tag, kind, _, value in struct.iter_unpack(f"{order}HHI4s", entries):
        if tag == _ORIENTATION_TAG:
            return _valid(order, kind, value)
    return 1


def _valid(order: str, kind: int, value: bytes) -> int:
    code = _VALUE_FORMATS.get(kind)
    number: int = struct.unpack_from(f"{order}{code}", value)[0] if code else 1
    return number if 1 <= number <= 8 else 1
