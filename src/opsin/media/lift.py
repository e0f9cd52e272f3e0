"""Lifts the pictures out of a large JSON body: what stays is small JSON, what is lifted is decoded and hashed.

A ``data:`` URL of at least ``MIN_URL_BYTES`` that is the value of a key ``url`` or ``image_url`` becomes
``<marker>:<number>``. Works on bytes, because a JSON parser would copy each picture twice. A quote inside a string is
always escaped, so what looks like a key without a backslash is one, and JSON that was valid stays valid.

Pure, so that it can run beside an event loop, and never keeps Python's lock for long at once: base64 and hashes let go
of it, and all else goes by pieces. Knows no protocol.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from opsin.core.errors import MediaError
from opsin.media import data_url
from opsin.media.header import read_header
from opsin.media.label import contradicts
from opsin.media.types import ImageFormat, Lift, LiftedMedia, MediaBytes

MIN_URL_BYTES = 4096
"""Shorter ones stay: they cost a parser little."""

_SEARCHED_BYTES = 128 * 2**10
"""At once. A search through quotes alone takes 3 ms for so many."""
_URL = re.compile(rb'"(?=[dD][aA][tT][aA]:[^"]{%d})' % (MIN_URL_BYTES - len("data:")))
_KEY = re.compile(rb'[^\\]"(?:url|image_url)"\s*:\s*\Z', re.IGNORECASE)
_KEY_BYTES = 64
"""With the white space that JSON allows around the colon; what stands further apart stays."""


@dataclass(frozen=True, slots=True)
class Lifted:
    """A body without its pictures, and the pictures by the URLs that stand in their place."""

    body: bytes
    media: LiftedMedia


def lift(body: bytes | bytearray, marker: str, max_image_bytes: int, accepted: Collection[ImageFormat]) -> Lifted:
    """Takes the large pictures out of ``body``. A picture that is wrong is lifted too, as its error."""
    kept: list[bytes | bytearray] = []
    media: dict[str, Lift] = {}
    position = 0
    for start, end in _urls(body):
        picture = _lifted(memoryview(body)[start:end], max_image_bytes, accepted)
        if picture is None:
            continue
        name = f"{marker}:{len(media)}"
        kept += [body[position:start], name.encode()]
        media[name] = picture
        position = end
    kept.append(body[position:])
    return Lifted(b"".join(kept), media)


def without_base64(media: LiftedMedia) -> LiftedMedia:
    """Where nobody sends it on; the body itself is then not kept for it."""
    return {name: replace(one, base64=None) if isinstance(one, MediaBytes) else one for name, one in media.items()}


def _urls(body: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Where they start and end, between their quotes."""
    position = 0
    while (start := _start_after(body, position)) >= 0:
        position = end = body.find(b'"', start)
        if end < 0:
            return
        is_value = _KEY.search(body[max(0, start - 1 - _KEY_BYTES) : start - 1])
        if is_value and body[end - 1] != ord("\\"):  # a quote in a URL: no base64 ends so
            yield start, end


def _start_after(body: bytes | bytearray, position: int) -> int:
    """Offset of the next string that may be a large ``data:`` URL, behind its quote; -1 without one."""
    while position < len(body):
        if found := _URL.search(body, position, position + _SEARCHED_BYTES + MIN_URL_BYTES + 1):
            return found.end()
        position += _SEARCHED_BYTES
    return -1


def _lifted(raw: memoryview, max_image_bytes: int, accepted: Collection[ImageFormat]) -> Lift | None:
    """The picture of a URL as it stands in JSON. None: not a JSON string, which the parser will say."""
    try:
        if (data := _plain(raw, max_image_bytes)) is not None:
            head = _head(raw)
            return _picture(data, head, raw[data_url.payload_start(head, "") :], accepted)
        if (url := _unescaped(raw)) is None:
            return None
        return _picture(data_url.parse_bytes(url, "", max_image_bytes), _head(url), None, accepted)
    except MediaError as error:
        return error


def _plain(raw: memoryview, max_image_bytes: int) -> bytes | None:
    """The bytes of a URL that nearly every client writes so, and that can be sent on as it is."""
    if b"\\" in bytes(raw[: data_url.MAX_START]):  # behind it, what is no base64 is found while it is decoded
        return None
    return data_url.parse_plain(raw, "", max_image_bytes)


def _unescaped(raw: memoryview) -> memoryview | None:
    r"""In UTF-8. Some encoders write ``\/`` and ``\u002B``."""
    text = bytes(raw)
    if b"\\" not in text:
        return raw
    try:
        return memoryview(str(json.loads(b'"%b"' % text)).encode(errors="replace"))
    except ValueError:
        return None


def _head(url: memoryview) -> str:
    return str(url[: data_url.MAX_START], "utf-8", "replace")


def _picture(data: bytes, head: str, base64: memoryview | None, accepted: Collection[ImageFormat]) -> MediaBytes:
    header = read_header(data, "", accepted)
    return MediaBytes(
        data=data,
        sha256=hashlib.sha256(data).hexdigest(),
        header=header,
        param="",
        base64=base64,
        mislabelled=contradicts(data_url.media_type(head), header.format),
    )
