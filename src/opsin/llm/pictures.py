"""Pictures as Python code has them, turned into the addresses that a request over HTTP would hold.

Bytes and files stay as they are; what is decoded already is written to PNG, which loses nothing. From there on a
picture goes the same way as a stranger's: header, limits, sandbox.
"""

from __future__ import annotations

import io
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from PIL import Image, ImageOps

from opsin.core.errors import MediaError, MediaUndecodable
from opsin.media import data_url
from opsin.media.loader import MediaLoader

ACCEPTED = "a PIL image, bytes, a path, a URL, or a uint8 array"

_ADDRESS = re.compile(r"(data|https?|file):", re.IGNORECASE)
_ENCODED = "application/octet-stream"
_PNG = "image/png"
_PNG_MODES = frozenset({"1", "L", "LA", "I;16", "P", "RGB", "RGBA"})
_WITH_ALPHA = {"La": "LA", "PA": "RGBA", "RGBa": "RGBA"}
_CHANNELS = (3, 4)
_DECODING = threading.Lock()
"""A lazy image decodes itself at first use, and Pillow lets only one thread do so; callers may share one image."""


def to_url(picture: object, loader: MediaLoader, param: str) -> str:
    """The address of a picture; ``param`` names its place in the call. Blocks while it encodes.

    Raises:
        MediaError: not a picture, or a file that cannot be used.
    """
    match picture:
        case Image.Image():
            return data_url.write(_PNG, _png(picture, param))
        case bytes() | bytearray() | memoryview():
            return data_url.write(_ENCODED, bytes(cast("bytes", picture)))
        case str() if _ADDRESS.match(picture):
            return picture
        case str() | os.PathLike():
            media = loader.load_file(Path(cast("str", picture)), param)
            return data_url.write(media.header.format.mime, media.data)
        case _:
            return data_url.write(_PNG, _png(_from_array(picture, param), param))


def _png(image: Image.Image, param: str) -> bytes:
    """Upright, because over HTTP the orientation of a photograph counts too."""
    try:
        with _DECODING:
            image.load()
        upright = ImageOps.exif_transpose(image)
        if isinstance(upright.info.get("transparency"), str):  # a text of a PNG that happens to be called so
            del upright.info["transparency"]
        if upright.mode not in _PNG_MODES:
            upright = upright.convert(_WITH_ALPHA.get(upright.mode, "RGB"))
        buffer = io.BytesIO()
        upright.save(buffer, "PNG", compress_level=1)
    except Exception as error:  # a lazy image is decoded only here, and decoders raise about anything
        raise MediaUndecodable("The PIL image cannot be read.", param=param) from error
    return buffer.getvalue()


def _from_array(picture: object, param: str) -> Image.Image:
    """From numpy's array interface, so that numpy itself is not needed here."""
    interface = getattr(picture, "__array_interface__", None)
    if not isinstance(interface, Mapping):
        raise MediaError(f"A picture must be {ACCEPTED}; got {type(picture).__name__}.", param=param)
    described = cast("Mapping[str, Any]", interface)
    kind, shape = described["typestr"], described["shape"]
    fits = len(shape) == 2 or (len(shape) == 3 and shape[2] in _CHANNELS)
    if kind != "|u1" or not fits or 0 in shape:
        raise MediaError(
            "An array must be uint8 of shape (height, width), (height, width, 3) or (height, width, 4); "
            f"got {kind} of shape {shape}.",
            param=param,
        )
    return Image.fromarray(cast("Any", picture))
