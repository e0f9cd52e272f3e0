"""How a picture is written anew for an engine that reads files. Knows no pixels and no encoder."""

from __future__ import annotations

from dataclasses import dataclass

from opsin.media.types import ImageFormat


@dataclass(frozen=True, slots=True)
class Encoding:
    """A format with an encoder in the workers; without ``quality`` (JPEG's, 1 to 100) nothing is lost."""

    format: ImageFormat
    quality: int | None = None


JPEG_95 = Encoding(ImageFormat.JPEG, 95)
"""Colours are not subsampled: a scaled picture has no pixel to spare."""

PNG = Encoding(ImageFormat.PNG)


def closest_to(image_format: ImageFormat) -> Encoding:
    """JPEG stays JPEG; what may be drawn, written or transparent loses nothing."""
    return JPEG_95 if image_format is ImageFormat.JPEG else PNG
