"""Pillow's TIFF decoder without its own ideas of orientation, and without samples for which it has no measure."""

from __future__ import annotations

from PIL.TiffImagePlugin import TiffImageFile

from opsin.media.undecodable import Failure, undecodable

_BITS_PER_SAMPLE, _PHOTOMETRIC, _SAMPLE_FORMAT = 258, 262, 339
_UNSIGNED, _WHITE_IS_ZERO = 1, 0
_MODES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I;16B"})


class StoredTiff(TiffImageFile):
    """The first page as it is stored. Raises MediaUndecodable when it opens a page with samples of another kind."""

    def _open(self) -> None:
        super()._open()
        self._size = self._tile_size  # Pillow swaps the sides of a page that is to be turned
        if not self._has_plain_samples():
            raise undecodable(Failure.UNSUPPORTED)

    def load_end(self) -> None:
        """Pillow would turn the page here, by its tag or by its XMP; the header alone says how it is turned."""

    def _has_plain_samples(self) -> bool:
        """Whether they are unsigned and of 8 bits or 16, as Pillow's modes tell: it reads others too, and does not
        scale 12 bits or invert 16."""
        bits, formats = (self._numbers(tag, default=1) for tag in (_BITS_PER_SAMPLE, _SAMPLE_FORMAT))
        is_inverted = self.mode == "I;16" and self._numbers(_PHOTOMETRIC, default=1) == {_WHITE_IS_ZERO}
        return self.mode in _MODES and 12 not in bits and formats == {_UNSIGNED} and not is_inverted

    def _numbers(self, tag: int, default: int) -> set[int]:
        value: int | tuple[int, ...] = self.tag_v2.get(tag, default)
        return set(value) if isinstance(value, tuple) else {value}
