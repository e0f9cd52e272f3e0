"""A picture scaled down and written anew, for engines that read files. Runs in a worker; Pillow and stdlib only."""

from __future__ import annotations

from io import BytesIO

from PIL import Image

from opsin.media.decode import upright_rgb
from opsin.media.encoding import Encoding
from opsin.media.types import ImageFormat, ImageHeader
from opsin.media.undecodable import Failure, undecodable
from opsin.vision.plan import Size

_NO_SUBSAMPLING, _HALF = 0, 2
"""Pillow's names for 4:4:4 and 4:2:0."""
_FAST_PNG = 1
"""Pillow's 6 took 3.5 times as long for a photo of 2048 x 1536, for 8 % less; WebP's defaults 15 times as long as the
fastest that is used here, for 12 % less."""


def scale(data: bytes, header: ImageHeader, size: Size, encoding: Encoding) -> bytes:
    """The picture upright, in RGB, resized (Lanczos) to ``size``; of the source's metadata nothing is left.

    Raises:
        MediaUndecodable: the picture does not decode.
    """
    picture = upright_rgb(data, header)
    # Always another picture than the decoder's own, whose name Pillow would look up before it writes. To its own size
    # Pillow copies.
    return _written(picture.resize((size.width, size.height), Image.Resampling.LANCZOS), encoding)


class _Named(BytesIO):
    """Pillow loads the one writer that belongs to a name; told the format, it loads decoders of others as well."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


def _written(picture: Image.Image, encoding: Encoding) -> bytes:
    picture.info = {}  # Pillow's writers take profile, comment and transparency from here
    buffer = _Named(f"picture.{encoding.format}")
    try:
        match encoding.format:
            case ImageFormat.JPEG:
                subsampling = _HALF if encoding.is_subsampled else _NO_SUBSAMPLING
                picture.save(buffer, quality=encoding.quality, subsampling=subsampling)
            case ImageFormat.PNG:
                picture.save(buffer, compress_level=_FAST_PNG)
            case ImageFormat.WEBP:
                picture.save(buffer, lossless=True, method=0, quality=0)
            case _:
                raise ValueError(f"{encoding.format} is never written")
    except MemoryError:
        raise undecodable(Failure.MEMORY) from None
    return buffer.getvalue()
