"""From bytes to ``ImageHeader``: which format by magic bytes, then a walk of its container. No decoder is involved."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping

from opsin.core.errors import Code, MediaUndecodable, UnsupportedMediaType
from opsin.media.containers import bmp, gif, heif, jpeg, png, tiff, webp
from opsin.media.types import HeaderSoFar, ImageFormat, ImageHeader
from opsin.media.undecodable import Failure, undecodable

_READERS: Mapping[ImageFormat, Callable[[bytes], Iterator[HeaderSoFar]]] = {
    ImageFormat.JPEG: jpeg.read,
    ImageFormat.PNG: png.read,
    ImageFormat.WEBP: webp.read,
    ImageFormat.GIF: gif.read,
    ImageFormat.BMP: bmp.read,
    ImageFormat.TIFF: tiff.read,
    ImageFormat.HEIC: heif.read_heic,
    ImageFormat.AVIF: heif.read_avif,
}

_KNOWN_MAGIC = tuple(
    (re.compile(pattern, re.DOTALL), image_format)
    for pattern, image_format in (
        (rb"\xff\xd8\xff", ImageFormat.JPEG),
        (re.escape(png.SIGNATURE), ImageFormat.PNG),
        (rb"RIFF....WEBP", ImageFormat.WEBP),
        (rb"GIF8[79]a", ImageFormat.GIF),
        (rb"BM.{4}\0{4}", ImageFormat.BMP),
        (rb"II[*+]\0|MM\0[*+]", ImageFormat.TIFF),
        (rb"....ftyp(avi[fs]|(mif1|msf1).{4}(.{4}){0,14}?avi[fs])", ImageFormat.AVIF),
        (rb"....ftyp(hei[cxms]|hev[cxms]|mif1|msf1)", ImageFormat.HEIC),
    )
)

_REFUSED_MAGIC = tuple(
    (re.compile(pattern, re.DOTALL | re.IGNORECASE), name)
    for pattern, name in (
        (rb"....ftyp", "MP4"),
        (rb"(\xef\xbb\xbf)?\s{0,64}<(svg\b|\?xml.{0,1024}?<svg\b)", "SVG"),
        (rb"(\xef\xbb\xbf)?\s{0,64}<(!doctype html|html|head|body)\b", "HTML"),
        (rb"(\xef\xbb\xbf)?\s{0,64}<\?xml\b", "XML"),
        (rb"%PDF-", "PDF"),
        (rb"%!PS|\xc5\xd0\xd3\xc6", "EPS"),
        (rb"8BPS", "PSD"),
        (rb"SIMPLE  =", "FITS"),
        (rb"\0\0[\1\2]\0", "ICO"),
        (rb"\xff\x0a|\0\0\0\x0cJXL ", "JPEG XL"),
        (rb"\0\0\0\x0cjP  |\xff\x4f\xff\x51", "JPEG 2000"),
        (rb"\x1a\x45\xdf\xa3", "WebM"),
        (rb"RIFF....AVI ", "AVI"),
    )
)


def read_header(data: bytes, param: str | None, accepted: Collection[ImageFormat]) -> ImageHeader:
    """What the container says about its picture. The size is not checked against limits, only against zero.

    Raises:
        UnsupportedMediaType: another format; the message names it when it is known.
        MediaUndecodable: an accepted format whose header is cut (``image_truncated``) or damaged.
    """
    *_, last = _walked(data, param, accepted)
    return last.header


def read_start(data: bytes, param: str | None, accepted: Collection[ImageFormat]) -> HeaderSoFar | None:
    """What the beginning of a file says; None where it ends before the size is told.

    Raises:
        UnsupportedMediaType, MediaUndecodable: as ``read_header``, but for what is only cut.
    """
    found = None
    try:
        for found in _walked(data, param, accepted):  # noqa: B007 - the last one counts
            pass
    except MediaUndecodable as error:
        if error.code != Code.IMAGE_TRUNCATED:
            raise
    return found


def _walked(data: bytes, param: str | None, accepted: Collection[ImageFormat]) -> Iterator[HeaderSoFar]:
    if not data:
        raise undecodable(Failure.TRUNCATED, param)
    reader = _READERS[_accepted_format(data, param, accepted)]
    try:
        for found in reader(data):
            if found.header.size.width == 0 or found.header.size.height == 0:
                raise undecodable(Failure.UNDECODABLE)
            yield found
    except MediaUndecodable as error:
        error.param = param
        raise


def _accepted_format(data: bytes, param: str | None, accepted: Collection[ImageFormat]) -> ImageFormat:
    known = next((image_format for magic, image_format in _KNOWN_MAGIC if magic.match(data)), None)
    if known is not None and known in accepted:
        return known
    *names, last = (image_format.written for image_format in accepted)
    formats = f"{', '.join(names)} and {last}" if names else last
    raise UnsupportedMediaType(f"{_refusal(data, known)}; accepted are {formats} (media.formats).", param=param)


def _refusal(data: bytes, known: ImageFormat | None) -> str:
    if known is not None:
        return f"{known.written} is not accepted by this server"
    name = next((name for magic, name in _REFUSED_MAGIC if magic.match(data)), None)
    return f"{name} is not accepted" if name else "The data is of no known picture format"
