"""GIF: logical screen, first frame, number of frames (CompuServe GIF89a)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from opsin.media.types import HeaderSoFar, ImageFormat, ImageHeader
from opsin.media.undecodable import Failure, undecodable
from opsin.vision.plan import Size

_MAX_STEPS = 50_000
"""Blocks and sub-blocks to walk, about 25 ms; 10 MiB in sub-blocks of 255 bytes are 41 000."""
_IMAGE, _EXTENSION = 0x2C, 0x21
_SCREEN_BYTES, _DESCRIPTOR_BYTES = 13, 10


def read(data: bytes) -> Iterator[HeaderSoFar]:
    """The header of a GIF file. The size covers the screen and a first frame that reaches beyond it, as in Pillow.

    Frames after the end of a bounded walk are not counted. A file that ends between blocks after its first frame is
    whole (browsers show it); one that ends inside a block is truncated.
    """
    if len(data) < _SCREEN_BYTES:
        raise undecodable(Failure.TRUNCATED)
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    walk = _Walk(data, _SCREEN_BYTES + _palette_bytes(flags))
    frame = walk.next_frame()
    if frame is None or not all(frame[2:]):
        raise undecodable(Failure.TRUNCATED if walk.is_at_end else Failure.UNDECODABLE)
    left, top, frame_width, frame_height = frame
    size = Size(max(width, left + frame_width), max(height, top + frame_height))
    yield HeaderSoFar(ImageHeader(ImageFormat.GIF, size, 1, 1), is_settled=True)
    walk.skip_pixels()
    frames = 1
    while walk.next_frame():
        walk.skip_pixels()
        frames += 1
    yield HeaderSoFar(ImageHeader(ImageFormat.GIF, size, 1, frames), is_settled=True)


class _Walk:
    """A position in the blocks of a file, and the steps that are left."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position
        self._steps_left = _MAX_STEPS

    @property
    def is_at_end(self) -> bool:
        """Whether no data is left."""
        return self._position >= len(self._data)

    def next_frame(self) -> tuple[int, int, int, int] | None:
        """Left, top, width and height of the next frame, whose pixels come next; None at the end of the file."""
        while self._steps_left > 0 and not self.is_at_end:
            self._steps_left -= 1
            kind = self._data[self._position]
            if kind == _IMAGE:
                return self._frame()
            if kind != _EXTENSION:  # the trailer, or nothing that belongs here
                return None
            self._advance(2)  # with its label
            self._skip_sub_blocks()
        return None

    def skip_pixels(self) -> None:
        """Walks over the data of the frame that was found last."""
        self._advance(1)  # the LZW code size
        self._skip_sub_blocks()

    def _frame(self) -> tuple[int, int, int, int]:
        start = self._position
        self._advance(_DESCRIPTOR_BYTES)
        left, top, width, height, flags = struct.unpack_from("<HHHHB", self._data, start + 1)
        self._advance(_palette_bytes(flags))
        return left, top, width, height

    def _skip_sub_blocks(self) -> None:
        while self._steps_left > 0:
            self._steps_left -= 1
            self._advance(1)
            length = self._data[self._position - 1]
            if length == 0:
                return
            self._advance(length)

    def _advance(self, count: int) -> None:
        self._position += count
        if self._position > len(self._data):
            raise undecodable(Failure.TRUNCATED)


def _palette_bytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0
