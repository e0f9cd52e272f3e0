"""From bytes to ``ImageHeader``: which format by magic bytes, then a walk of its container. No decoder is involved."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from opsin.core.errors import MediaUndecodable, UnsupportedMediaType
from opsin.media.containers import gif, jpeg, png, webp
from opsin.media.types import ImageFormat, ImageHeader
from opsin.media.undecodable import Failure, undecodable

_READERS: Mapping[ImageFormat, Callable[[bytes], ImageHeader]] = {
    ImageFormat.JPEG: jpeg.read,
    ImageFormat.PNG: png.read,
    ImageFormat.WEBP: webp.read,
    ImageFormat.GIF: gif.read,
}

_ACCEPTED_MAGIC = (
    (re.compile(rb"\xff\xd8\xff"), ImageFormat.JPEG),
    (re.compile(re.escape(png.SIGNATURE)), ImageFormat.PNG),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), ImageFormat.WEBP),
    (re.compile(rb"GIF8[79]a"), ImageFormat.GIF),
)

_REFUSED_MAGIC = tuple(
    (re.compile(pattern, re.DOTALL | re.IGNORECASE), name)
    for pattern, name in (
        (rb"....ftyp.{0,64}?avi[fs]", "AVIF"),
        (rb"....ftyp(hei[cxms]|hev[cxms]|mif1|msf1)", "HEIC"),
        (rb"....ftyp", "MP4"),
        (rb"(\xef\xbb\xbf)?\s{0,64}<(svg\b|\?xml.{0,1024}?<svg\b)", "SVG"),
        (rb"(\xef\xbb\xbf)?\s{0,64}<(!doctype html|html|head|body)\b", "HTML"),
        (rb"(\xef\xbb\xbf)?\s{0,64}<\?xml\b", "XML"),
        (rb"%PDF-", "PDF"),
        (rb"%!PS|\xc5\xd0\xd3\xc6", "EPS"),
        (rb"II[*+]\0|MM\0[*+]", "TIFF"),
        (rb"BM.{4}\0{4}", "BMP"),
        (rb"8BPS", "PSD"),
        (rb"SIMPLE  =", "FITS"),
        (rb"\0\0[\1\2]\0", "ICO"),
        (rb"\xff\x0a|\0\0\0\x0cJXL ", "JPEG XL"),
        (rb"\0\0\0\x0cjP  |\xff\x4f\xff\x51", "JPEG 2000"),
        (rb"\x1a\x45\xdf\xa3", "WebM"),
        (rb"RIFF....AVI ", "AVI"),
    )
)

_ACCEPTED_NAMES = "JPEG, PNG, WebP and GIF"


def read_header(data: bytes, param: str | None) -> ImageHeader:
    """What the container says about its picture. The size is not checked against limits, only against zero.

    Raises:
        UnsupportedMediaType: another format; the message names it when it is known.
        MediaUndecodable: an accepted format whose header is cut (``image_truncated``) or damaged.
    """
    if not data:
        raise undecodable(Failure.TRUNCATED, param)
    reader = _READERS[_accepted_format(data, param)]
    try:
        header = reader(data)
    except MediaUndecodable as error:
        error.param = param
        raise
    if header.size.width == 0 or header.size.height == 0:
        raise undecodable(Failure.UNDECODABLE, param)
    return header


def _accepted_format(data: bytes, param: str | None) -> ImageFormat:
    for magic, image_format in _ACCEPTED_MAGIC:
        if magic.match(data):
            return image_format
    name = next((name for magic, name in _REFUSED_MAGIC if magic.match(data)), None)
    found = f"{name} is not accepted" if name else "The data is of no known picture format"
    raise UnsupportedMediaType(f"{found}; accepted are {_ACCEPTED_NAMES}.", param=param)
