"""Exercises everything that a worker will do, so that nothing is imported or opened once it is confined.

The pictures are two pixels wide and in orange where their kind knows colours. They stand here encoded, because a worker
has few encoders; Pillow and pillow-heif made them, with their lowest quality.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Collection
from importlib import import_module
from itertools import chain

from opsin.media.encoding import JPEG_95, PNG, WEBP
from opsin.media.header import read_header
from opsin.media.render import render
from opsin.media.scale import scale
from opsin.media.types import ImageFormat
from opsin.vision.recipe import Filter, RenderRecipe, Resize, View
from opsin.vision.size import Size

_LATE = ("PIL.ImageFile", "PIL.ImagePalette", "PIL.TiffImagePlugin")
"""Modules that Pillow imports when a picture asks for it: EXIF is a TIFF to it, wherever it stands."""

_RECIPE = RenderRecipe(Size(1, 1), (View((), 2, 2), View((Resize(Size(1, 1), Filter.LANCZOS),))))

_SAMPLES = {
    ImageFormat.JPEG: (
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAFA3PEY8MlBGQUZaVVBfeMiCeG5uePWvuZHI////////////////////////////////"
        "////////////////////wAALCAACAAIBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAAP/EABQQAQAAAAAAAAAAAAAAAAAAAAD/2gAI"
        "AQEAAD8AP//Z",
    ),
    ImageFormat.PNG: (
        "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAFklEQVR4nGM8kWLEwMDAxMDAwMDAAAARKAFipiAqoAAAAABJRU5ErkJggg==",
    ),
    ImageFormat.WEBP: (
        "UklGRh4AAABXRUJQVlA4TBEAAAAvAUAAAAdQsiJXpv+BiOh/AAA=",
        "UklGRjAAAABXRUJQVlA4ICQAAABwAQCdASoCAAIAB0CWJaACdAFAAAD8yuuLmyMNepWEN2TIAAA=",
    ),
    ImageFormat.GIF: ("R0lGODdhAgACAIEAAMhkMgAAAAAAAAAAACwAAAAAAgACAAAIBgABCAQQEAA7",),
    ImageFormat.BMP: (
        "Qk1GAAAAAAAAAD4AAAAoAAAAAgAAAAIAAAABAAEAAAAAAAgAAADEDgAAxA4AAAIAAAACAAAAAAAAAP///wCAAAAAQAAAAA==",
        "Qk1CAAAAAAAAADoAAAAoAAAAAgAAAAIAAAABAAgAAAAAAAgAAADEDgAAxA4AAAEAAAABAAAAMmTIAAAAAAAAAAAA",
    ),
    ImageFormat.TIFF: (
        "SUkqAAgAAAAKAAABBAABAAAAAgAAAAEBBAABAAAAAgAAAAIBAwADAAAAhgAAAAMBAwABAAAAAQAAAAYBAwABAAAAAgAAABEBBAAB"
        "AAAAjAAAABUBAwABAAAAAwAAABYBBAABAAAAAgAAABcBBAABAAAADAAAABwBAwABAAAAAQAAAAAAAAAIAAgACADIZDLIZDLIZDLI"
        "ZDI=",
        "SUkqABQAAACAMgyDKBQSBwWAgAAKAAABAwABAAAAAgAAAAEBAwABAAAAAgAAAAIBAwADAAAAkgAAAAMBAwABAAAABQAAAAYBAwAB"
        "AAAAAgAAABEBBAABAAAACAAAABUBAwABAAAAAwAAABYBAwABAAAAAgAAABcBBAABAAAACwAAABwBAwABAAAAAQAAAAAAAAAIAAgA"
        "CAA=",
    ),
    ImageFormat.HEIC: (
        "AAAAHGZ0eXBoZWljAAAAAG1pZjFoZWljbWlhZgAAAXxtZXRhAAAAAAAAACFoZGxyAAAAAAAAAABwaWN0AAAAAAAAAAAAAAAAAAAA"
        "ACJpbG9jAAAAAERAAAEAAQAAAAABoAABAAAAAAAAACgAAAAjaWluZgAAAAAAAQAAABVpbmZlAgAAAAABAABodmMxAAAAAA5waXRt"
        "AAAAAAABAAAA/GlwcnAAAADcaXBjbwAAAHVodmNDAQNwAAAAkAAAAAAAHvAA/P34+AAADwNgAAEAGEABDAH//wNwAAADAJAAAAMA"
        "AAMAHroCQGEAAQApQgEBA3AAAAMAkAAAAwAAAwAeoCCBBZbqrprm4CGgwIAAAAyAAAADAIRiAAEABkQBwXPBiQAAABNjb2xybmNs"
        "eAABAA0ABoAAAAAUaXNwZQAAAAAAAABAAAAAQAAAAChjbGFwAAAAAgAAAAEAAAACAAAAAf///8IAAAAC////wgAAAAIAAAAQcGl4"
        "aQAAAAADCAgIAAAAGGlwbWEAAAAAAAAAAQABBYECAwWEAAAAMG1kYXQAAAAkKAGvGSE5Eu9dpb/3iP+XpX83W3ymSqaXBNeImQsD"
        "gYCNkZ04",
    ),
    ImageFormat.AVIF: (
        "AAAAIGZ0eXBhdmlmAAAAAGF2aWZtaWYxbWlhZk1BMUIAAADrbWV0YQAAAAAAAAAhaGRscgAAAAAAAAAAcGljdAAAAAAAAAAAAAAA"
        "AAAAAAAOcGl0bQAAAAAAAQAAAB5pbG9jAAAAAEQAAAEAAQAAAAEAAAETAAAAIQAAAChpaW5mAAAAAAABAAAAGmluZmUCAAAAAAEA"
        "AGF2MDFDb2xvcgAAAABqaXBycAAAAEtpcGNvAAAAFGlzcGUAAAAAAAAAAgAAAAIAAAAQcGl4aQAAAAADCAgIAAAADGF2MUOBAAwA"
        "AAAAE2NvbHJuY2x4AAEADQAGgAAAABdpcG1hAAAAAAAAAAEAAQQBAoMEAAAAKW1kYXQSAAoIGAA2iAhoNCAyEx7Hh4VZ3///4s/A"
        "AJA1jbs2D+k=",
    ),
}
"""By what their decoders do differently: WebP without loss and with, BMP of one bit and with a palette, TIFF by Pillow
and by libtiff."""


def samples(image_format: ImageFormat) -> tuple[bytes, ...]:
    """Pictures of 2 x 2 pixels."""
    return tuple(b64decode(sample) for sample in _SAMPLES[image_format])


def warm_up(formats: Collection[ImageFormat]) -> None:
    """Renders pictures of each format, and scales one with each encoder."""
    for name in _LATE:
        import_module(name)
    pictures = {image_format: samples(image_format) for image_format in formats}
    for data in chain.from_iterable(pictures.values()):
        render(data, read_header(data, None, formats), _RECIPE)
    some = next(iter(pictures.values()))[0]
    for encoding in (JPEG_95, PNG, WEBP):
        scale(some, read_header(some, None, formats), Size(1, 1), encoding)
