"""Pixels: decode one picture to upright RGB on white and execute its recipe. Runs in a worker; Pillow and stdlib only.

``execute`` does what Transformers' Idefics3 image processor (PIL backend) does to the RGB picture: Pillow's Lanczos on
uint8, step by step, so the tiles are identical. Nothing here knows a model, a request or a limit.
"""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, cast

from PIL import GifImagePlugin, Image, ImageChops, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

from opsin.core.errors import MediaUndecodable
from opsin.media.containers import png
from opsin.media.types import ImageFormat, ImageHeader
from opsin.media.undecodable import Failure, undecodable
from opsin.vision.plan import RenderRecipe, Size

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

_PLUGINS: dict[ImageFormat, type[ImageFile]] = {
    ImageFormat.JPEG: JpegImagePlugin.JpegImageFile,
    ImageFormat.PNG: PngImagePlugin.PngImageFile,
    ImageFormat.WEBP: WebPImagePlugin.WebPImageFile,
    ImageFormat.GIF: GifImagePlugin.GifImageFile,
}
"""The classes themselves: ``Image.open`` would try other formats, and turn a JPEG into an MPO."""

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_WHITE = (255, 255, 255)

_Extents = tuple[int, int, int, int]


def verify(data: bytes, header: ImageHeader) -> None:
    """Decodes the picture completely. Raises MediaUndecodable."""
    _decoded(data, header)


def render(data: bytes, header: ImageHeader, recipe: RenderRecipe) -> bytes:
    """The tiles of the picture, see ``RenderedPicture.pixels``. Raises MediaUndecodable."""
    return execute(_upright_rgb(data, header), recipe)


def execute(picture: Image.Image, recipe: RenderRecipe) -> bytes:
    """Runs a recipe on an upright RGB picture."""
    for size in recipe.resizes:
        picture = _resized(picture, size)
    tiles = [picture.crop(box) for box in _boxes(recipe)] or [picture]
    if recipe.overview:
        tiles.append(_resized(picture, recipe.tile))
    return b"".join(tile.tobytes() for tile in tiles)


def _resized(picture: Image.Image, size: Size) -> Image.Image:
    return picture.resize((size.width, size.height), Image.Resampling.LANCZOS)


def _boxes(recipe: RenderRecipe) -> list[_Extents]:
    """Tiles in reading order: left, top, right, bottom."""
    width, height = recipe.tile.width, recipe.tile.height
    return [
        (column * width, row * height, (column + 1) * width, (row + 1) * height)
        for row in range(recipe.rows)
        for column in range(recipe.columns)
    ]


def _upright_rgb(data: bytes, header: ImageHeader) -> Image.Image:
    picture, extents = _decoded(data, header)
    try:
        rgb = _within(_rgb(picture), extents)
    except Exception as error:
        raise _translated(error) from None
    transpose = _UPRIGHT.get(header.orientation)
    return rgb if transpose is None else rgb.transpose(transpose)


def _decoded(data: bytes, header: ImageHeader) -> tuple[Image.Image, _Extents]:
    """First frame with all its pixels, and the part of the picture that it covers.

    The only border to Pillow's decoders. On damaged data they raise about anything (OSError, SyntaxError, ValueError,
    TypeError, struct.error ...), so everything they raise is about the picture.
    """
    if header.format is ImageFormat.PNG and not png.has_good_checksums(data):
        raise undecodable(Failure.UNDECODABLE)
    try:
        picture = _PLUGINS[header.format](BytesIO(data))
        if picture.size != (header.size.width, header.size.height):
            raise undecodable(Failure.UNDECODABLE)
        extents = _extents(picture, header.format)
        transparency = png.transparency(data) if header.format is ImageFormat.PNG else None
        _set_transparency(picture, header.format, transparency)
        picture.load()
        _set_transparency(picture, header.format, transparency)  # chunks after the pixels may have overwritten it
        if header.format is ImageFormat.PNG and not _is_complete(picture, data):
            raise undecodable(Failure.TRUNCATED)
    except MediaUndecodable:
        raise
    except Exception as error:
        raise _translated(error) from None
    return picture, extents


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


def _extents(picture: ImageFile, image_format: ImageFormat) -> _Extents:
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


def _rgb(picture: Image.Image) -> Image.Image:
    if picture.mode == "I;16":
        return _rgb_of_grey16(picture)
    if picture.has_transparency_data:
        rgba = picture.convert("RGBA")
        return _on_white(rgba, rgba.getchannel("A"))
    return picture.convert("RGB")


def _rgb_of_grey16(picture: Image.Image) -> Image.Image:
    """The high byte of each sample: Pillow's own conversion clips, which turns 20000 into white instead of 78."""
    high_bytes = Image.frombytes("L", picture.size, picture.tobytes()[1::2])  # I;16 is little-endian
    transparent_level = cast("int | None", picture.info.get("transparency"))
    if transparent_level is None:
        return high_bytes.convert("RGB")
    return _on_white(high_bytes, _differs(picture, transparent_level))


def _differs(picture: Image.Image, level: int) -> Image.Image:
    """A mask of 0 where the 16-bit sample equals ``level``, else 255. Conversion to L clips, hence both signs."""
    samples = picture.convert("I")
    above = samples.point(lambda sample: sample * 1 - level).convert("L")
    below = samples.point(lambda sample: sample * -1 + level).convert("L")
    return ImageChops.lighter(above, below).point([0] + [255] * 255)


def _on_white(picture: Image.Image, alpha: Image.Image) -> Image.Image:
    canvas = Image.new("RGB", picture.size, _WHITE)
    canvas.paste(picture.convert("RGB"), mask=alpha)
    return canvas


def _within(rgb: Image.Image, extents: _Extents) -> Image.Image:
    if extents == (0, 0, *rgb.size):
        return rgb
    canvas = Image.new("RGB", rgb.size, _WHITE)
    canvas.paste(rgb.crop(extents), extents)
    return canvas
