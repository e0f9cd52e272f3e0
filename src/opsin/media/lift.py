"""Lifts the pictures out of a large JSON body: what stays is small JSON, what is lifted is decoded and hashed.

A ``data:`` URL of at least ``MIN_URL_BYTES`` that is the value of a key ``url`` or ``image_url`` becomes
``<marker>:<number>``. Works on bytes, because a JSON parser would copy each picture twice. A quote inside a string is
always escaped, so what looks like a key without a backslash is one, and JSON that was valid stays valid.
Pure, so that a sandboxed worker can do it; knows no protocol.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from opsin.core.errors import MediaError
from opsin.media import data_url
from opsin.media.header import read_header
from opsin.media.label import contradicts
from opsin.media.messages import Lifted, LiftedPicture, Refusal
from opsin.media.types import ImageFormat, Lift, MediaBytes
from opsin.media.undecodable import Failure, undecodable

MIN_URL_BYTES = 4096
"""Shorter ones stay: an answer about each costs up to 512 bytes."""

_URL = re.compile(rb'"(?<!\\")(?:url|image_url)"\s*:\s*"(?=data:)', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Found:
    """A URL between its quotes. ``end`` is where the closing quote stands."""

    start: int
    end: int
    url: str
    escaped: bool


def lift(body: bytes, marker: str, max_image_bytes: int, accepted: Collection[ImageFormat]) -> Lifted:
    """Takes the large pictures out of ``body``. A picture that is wrong is lifted too, as its error."""
    kept: list[bytes] = []
    pictures: list[LiftedPicture | Refusal] = []
    position = 0
    for found in _urls(body):
        kept += [body[position : found.start], f"{marker}:{len(pictures)}".encode()]
        pictures.append(_picture(found, max_image_bytes, accepted))
        position = found.end
    kept.append(body[position:])
    return Lifted(b"".join(kept), tuple(pictures))


def opened(lifted: Lifted, body: bytes, marker: str, *, keep_base64: bool) -> dict[str, Lift]:
    """What ``lift`` found in ``body``, by the URLs that stand in its place now."""
    return {
        f"{marker}:{number}": _opened(picture, body if keep_base64 else None)
        for number, picture in enumerate(lifted.pictures)
    }


def _opened(picture: LiftedPicture | Refusal, body: bytes | None) -> Lift:
    if isinstance(picture, Refusal):
        kind = picture.code.error
        is_of_media = issubclass(kind, MediaError)  # or the worker is not itself any more
        return kind(picture.message, code=picture.code) if is_of_media else undecodable(Failure.UNDECODABLE)
    kept = memoryview(body)[slice(*picture.base64)] if body is not None and picture.base64 is not None else None
    return MediaBytes(picture.data, picture.sha256, picture.header, "", kept, picture.mislabelled)


def _urls(body: bytes) -> Iterator[_Found]:
    position = 0
    while (match := _URL.search(body, position)) is not None:
        start, position = match.end(), _closing_quote(body, match.end())
        if position < 0:
            return
        if position - start < MIN_URL_BYTES:
            continue
        raw = body[start:position]
        if b"\\" not in raw:
            yield _Found(start, position, raw.decode("utf-8", "replace"), escaped=False)
        elif (url := _unescaped(raw)) is not None:
            yield _Found(start, position, url, escaped=True)


def _closing_quote(body: bytes, position: int) -> int:
    """Offset of the first quote that no backslash escapes; -1 without one."""
    while (quote := body.find(b'"', position)) >= 0:
        backslashes = quote - len(body[position:quote].rstrip(b"\\")) - position
        if backslashes % 2 == 0:
            return quote
        position = quote + 1
    return -1


def _unescaped(raw: bytes) -> str | None:
    r"""Some encoders write ``\/`` and ``\u002B``. None: not a JSON string, which the parser will say."""
    try:
        return str(json.loads(b'"' + raw + b'"'))
    except ValueError:
        return None


def _picture(found: _Found, max_image_bytes: int, accepted: Collection[ImageFormat]) -> LiftedPicture | Refusal:
    try:
        data = data_url.parse(found.url, "", max_image_bytes)
        header = read_header(data, "", accepted)
    except MediaError as error:
        return Refusal(error.code, error.message)
    payload = found.start + data_url.payload_start(found.url, "")
    canonical = not found.escaped and found.end - payload == -(-len(data) // 3) * 4
    return LiftedPicture(
        data=data,
        sha256=hashlib.sha256(data).hexdigest(),
        header=header,
        base64=(payload, found.end) if canonical else None,
        mislabelled=contradicts(data_url.media_type(found.url), header.format),
    )
