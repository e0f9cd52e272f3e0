"""How a picture is written anew for an engine that reads files. Knows no pixels and no encoder."""

from __future__ import annotations

import re
from dataclasses import dataclass

from opsin.media.types import ImageFormat


@dataclass(frozen=True, slots=True)
class Encoding:
    """A format with an encoder in the workers; without ``quality`` (JPEG's, 1 to 100) nothing is lost.

    ``is_subsampled``: colours at half the resolution, as most JPEG files have them.
    """

    format: ImageFormat
    quality: int | None = None
    is_subsampled: bool = False

    @property
    def name(self) -> str:
        """As operators write it: ``jpeg:85``, ``png``, ``webp-lossless``."""
        if self.quality is not None:
            return f"{self.format}:{self.quality}"
        return f"{self.format}-lossless" if self.format is ImageFormat.WEBP else self.format.value


JPEG_95 = Encoding(ImageFormat.JPEG, 95)
"""Colours are not subsampled: a scaled picture has no pixel to spare."""

PNG = Encoding(ImageFormat.PNG)
WEBP = Encoding(ImageFormat.WEBP)

_JPEG = re.compile(r"jpeg:(100|[1-9]\d?)")


def encoding_of(name: str) -> Encoding:
    """Raises ValueError, with the names that there are, for any other one."""
    if (jpeg := _JPEG.fullmatch(name)) is not None:
        return Encoding(ImageFormat.JPEG, int(jpeg[1]))
    lossless = {encoding.name: encoding for encoding in (PNG, WEBP)}
    if name not in lossless:
        raise ValueError("should be jpeg:QUALITY with 1 to 100, webp-lossless or png")
    return lossless[name]


def closest_to(image_format: ImageFormat) -> Encoding:
    """What cameras write becomes JPEG; what may be drawn, written or transparent loses nothing."""
    return JPEG_95 if image_format in (ImageFormat.JPEG, ImageFormat.HEIC) else PNG
