"""Which decoder class reads which format. A decoder is imported only where its format is accepted.

The classes themselves: ``Image.open`` would try other formats, and turn a JPEG into an MPO.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from opsin.media.types import ImageFormat

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

_NEEDED = {ImageFormat.HEIC: "pillow_heif", ImageFormat.AVIF: "PIL._avif"}
"""Modules that an installation may lack."""

STARTS_THREADS = frozenset({ImageFormat.HEIC})
"""Whose decoder starts a thread however it is set up (libde265)."""


def is_installed(image_format: ImageFormat) -> bool:
    """Whether the decoder of a format is there. Imports none."""
    return image_format not in _NEEDED or find_spec(_NEEDED[image_format]) is not None


@cache
def plugin(image_format: ImageFormat) -> type[ImageFile]:
    """The class that decodes a format, set up to use one thread."""
    match image_format:
        case ImageFormat.JPEG:
            from PIL.JpegImagePlugin import JpegImageFile

            return JpegImageFile
        case ImageFormat.PNG:
            from PIL.PngImagePlugin import PngImageFile

            return PngImageFile
        case ImageFormat.WEBP:
            from PIL.WebPImagePlugin import WebPImageFile

            return WebPImageFile
        case ImageFormat.GIF:
            from PIL.GifImagePlugin import GifImageFile

            return GifImageFile
        case ImageFormat.BMP:
            from PIL.BmpImagePlugin import BmpImageFile

            return BmpImageFile
        case ImageFormat.TIFF:
            from opsin.media.stored_tiff import StoredTiff

            return StoredTiff
        case ImageFormat.HEIC:
            return _heic()
        case ImageFormat.AVIF:
            return _avif()


def _heic() -> type[ImageFile]:
    from pillow_heif import options
    from pillow_heif.as_plugin import HeifImageFile

    options.DECODE_THREADS = 1
    options.THUMBNAILS = options.DEPTH_IMAGES = options.AUX_IMAGES = False
    return HeifImageFile


def _avif() -> type[ImageFile]:
    from PIL import AvifImagePlugin

    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    return AvifImagePlugin.AvifImageFile
