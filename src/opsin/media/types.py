"""What media hands to the next stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from opsin.core.errors import MediaError
from opsin.vision.plan import Size


class ImageFormat(StrEnum):
    """Formats that can be accepted, by magic bytes; which ones are is ``MediaConfig.formats``."""

    JPEG = "jpeg"
    PNG = "png"
    WEBP = "webp"
    GIF = "gif"
    BMP = "bmp"
    TIFF = "tiff"
    HEIC = "heic"
    AVIF = "avif"

    @property
    def written(self) -> str:
        """As people write it."""
        return "WebP" if self is ImageFormat.WEBP else self.value.upper()

    @property
    def mime(self) -> str:
        """The media type, e.g. ``image/jpeg``."""
        return f"image/{self.value}"


class RenderMode(StrEnum):
    """EXACT makes the pixels of the model's own processor; FAST makes nearly these, see :mod:`opsin.media.fast`."""

    EXACT = "exact"
    FAST = "fast"


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """What the container says before any pixel is decoded. ``size`` is as stored, before ``orientation``."""

    format: ImageFormat
    size: Size
    orientation: int  # EXIF 1 to 8
    frames: int  # 1 unless the container declares an animation or further pictures

    @property
    def upright(self) -> Size:
        """The size after applying the orientation: 5 to 8 swap the sides."""
        return Size(self.size.height, self.size.width) if self.orientation >= 5 else self.size


@dataclass(frozen=True, slots=True)
class HeaderSoFar:
    """What a file says up to some place. ``is_settled``: nothing behind it can turn the picture."""

    header: ImageHeader
    is_settled: bool


@dataclass(frozen=True, slots=True)
class MediaBytes:
    """A loaded picture, not decoded. ``param`` names its place in the request.

    ``base64`` is the payload as the client encoded it, where it is canonical and was kept: to send on untouched.
    ``mislabelled``: whoever sent it named another media type than its bytes have.
    ``url_outcome``: of a picture by URL, what the cache of URLs had, in its words.
    """

    data: bytes
    sha256: str
    header: ImageHeader
    param: str
    base64: memoryview | None = None
    mislabelled: bool = False
    url_outcome: str | None = None


@dataclass(frozen=True, slots=True)
class Glance:
    """What is known of a picture before its bytes are needed. The fields are those of HeaderSoFar and MediaBytes."""

    header: ImageHeader
    is_settled: bool
    param: str
    mislabelled: bool = False


Lift = MediaBytes | MediaError
"""A picture that was taken out of a large body, or why it cannot be used; its ``param`` is not known yet."""
LiftedMedia = Mapping[str, Lift]
"""By the URL that stands in its place."""


@dataclass(frozen=True, slots=True)
class RenderedPicture:
    """Tiles of one picture as uint8 RGB, C order, shape (num_tiles, tile.height, tile.width, 3)."""

    pixels: bytes
    num_tiles: int
    tile: Size
