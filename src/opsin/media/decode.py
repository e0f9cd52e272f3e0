"""The only border to decoders: encoded bytes to a picture of Pillow's, by exactly the decoder of its format.

On damaged data decoders raise about anything (OSError, SyntaxError, ValueError, TypeError, struct.error ...), so
everything they raise is about the picture. Nothing here knows a model, a request or a limit. Runs in a worker.
"""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from PIL import Image

from opsin.core.errors import MediaUndecodable
from opsin.media.containers import png
from opsin.media.plugins import plugin
from opsin.media.rgb import Extents, to_rgb, within
from opsin.media.types import ImageFormat, ImageHeader
from opsin.media.undecodable import Failure, undecodable

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_TURNED_BY_DECODER = frozenset({ImageFormat.HEIC})


def verify(data: bytes, header: ImageHeader) -> None:
    """Decodes the picture completely. Raises MediaUndecodable."""
    _decoded(data, header)


def upright_rgb(data: bytes, header: ImageHeader, scale: int = 1) -> Image.Image:
    """The first frame, at a fraction of its sides: 1, 2, 4 or 8, rounded up. Raises MediaUndecodable."""
    is_scaled = header.format is ImageFormat.JPEG
    picture, extents = _decoded(data, header, scale if is_scaled else 1)
    try:
        rgb = within(to_rgb(picture), extents)
        rgb = rgb if is_scaled or scale == 1 else rgb.reduce(scale)
    except Exception as error:
        raise _translated(error) from None
    transpose = None if header.format in _TURNED_BY_DECODER else _UPRIGHT.get(header.orientation)
    return rgb if transpose is None else rgb.transpose(transpose)


def _decoded(data: bytes, header: ImageHeader, scale: int = 1) -> tuple[Image.Image, Extents]:
    """First frame with all its pixels, and the part of the picture that it covers. ``scale`` is for JPEG."""
    if header.format is ImageFormat.PNG and not png.has_good_checksums(data):
        raise undecodable(Failure.UNDECODABLE)
    try:
        picture = plugin(header.format)(BytesIO(data))
        _check_size(picture, header)
        if scale > 1:
            picture.draft("RGB", (header.size.width // scale, header.size.height // scale))
        extents = _extents(picture, header.format)
        transparency = png.transparency(data) if header.format is ImageFormat.PNG else None
        _set_transparency(picture, header.format, transparency)
        picture.load()
        _check_size(picture, header, scale)
        _set_transparency(picture, header.format, transparency)  # chunks after the pixels may have overwritten it
        if header.format is ImageFormat.PNG and not _is_complete(picture, data):
            raise undecodable(Failure.TRUNCATED)
    except MediaUndecodable:
        raise
    except Exception as error:
        raise _translated(error) from None
    return picture, extents


def _check_size(picture: ImageFile, header: ImageHeader, scale: int = 1) -> None:
    """A decoder that sees another size than the limits saw must not go on, nor return its pixels."""
    expected = header.upright if header.format in _TURNED_BY_DECODER else header.size
    if picture.size != (-(-expected.width // scale), -(-expected.height // scale)):
        raise undecodable(Failure.UNDECODABLE)


def _is_complete(picture: Image.Image, data: bytes) -> bool:
    """Whether the PNG had all its rows. Inflating it again is only needed when its last row may be a missing one."""
    last_row = picture.crop((0, picture.height - 1, *picture.size))
    return (any(last_row.tobytes()) and not png.is_interlaced(data)) or png.has_all_rows(data)


def _translated(error: Exception) -> Exception:
    """Pillow tells truncation only by its text."""
    if isinstance(error, MemoryError):
        return undecodable(Failure.MEMORY)
    truncated = isinstance(error, OSError) and "truncated" in str(error)
    return undecodable(Failure.TRUNCATED if truncated else Failure.UNDECODABLE)


def _extents(picture: ImageFile, image_format: ImageFormat) -> Extents:
    """Only a GIF's first frame may be smaller than the picture; what it leaves open is transparent."""
    whole = (0, 0, *picture.size)
    if image_format is not ImageFormat.GIF or not picture.tile:
        return whole
    return picture.tile[0].extents or whole


def _set_transparency(picture: ImageFile, image_format: ImageFormat, value: png.Transparency | None) -> None:
    """Replaces what Pillow read from tRNS, see ``png.transparency``. GIF keeps Pillow's palette index."""
    if image_format is ImageFormat.GIF:
        return
    picture.info.pop("transparency", None)
    if value is not None:
        picture.info["transparency"] = value
