"""``data:`` URLs: one documented grammar, a subset of RFC 2397.

    data:[<anything without a comma>];base64,<payload>

- The scheme and ``;base64`` are case-insensitive; ``;base64`` is the last parameter, and required.
- Media type and parameters are ignored: the magic bytes decide what a picture is, so ``text/html`` in front of a PNG
  is a PNG, and a PNG label in front of HTML is refused as HTML.
- ASCII whitespace in the payload is removed (MIME line breaks); padding is optional but not wrong; the alphabet is the
  standard one only. Percent-encoding and the URL-safe alphabet are errors, because guessing gives wrong bytes.

Everything else is ``InvalidDataUrl`` naming the offset in the URL, never its content: of the first character that does
not belong there, of the comma before which ``;base64`` is missing, or of the end where nothing but the length is wrong.
``write`` gives the plainest form. This module knows no picture.
"""

from __future__ import annotations

import binascii
import re

import pybase64

from opsin.core.errors import InvalidDataUrl, MediaTooLarge

SCHEME = "data:"
_MARKER = ";base64"
_MAX_HEADER = 256  # characters between the scheme and the comma
MAX_START = len(SCHEME) + _MAX_HEADER + 1
"""All before the payload stands in so many characters."""
_WHITESPACE = b" \t\n\r\f"
_FOREIGN = re.compile(r"[^A-Za-z0-9+/= \t\n\r\f]")
_NOT_PADDING = re.compile(r"[^= \t\n\r\f]")


def parse(url: str, param: str, max_bytes: int) -> bytes:
    """The payload of a base64 ``data:`` URL.

    Raises:
        InvalidDataUrl: the URL is outside the grammar.
        MediaTooLarge: the payload would be more than ``max_bytes``; seen from its length, before it is decoded.
    """
    start = payload_start(url, param)
    if (len(url) - start) * 3 // 4 <= max_bytes and (decoded := _strictly(url[start:])) is not None:
        return decoded
    try:
        payload = url[start:].encode("ascii").translate(None, _WHITESPACE)
    except UnicodeEncodeError:
        raise _not_base64(url, start, param) from None
    digits = payload.rstrip(b"=")
    size = len(digits) * 3 // 4
    if size > max_bytes:
        raise MediaTooLarge(f"The picture has {size} bytes; the limit is {max_bytes}.", param=param)
    padding = -len(digits) % 4
    try:
        if padding == 3 or len(payload) - len(digits) not in (0, padding):
            raise binascii.Error
        return pybase64.b64decode(digits + b"=" * padding, validate=True)
    except binascii.Error:
        raise _not_base64(url, start, param) from None


def parse_bytes(url: memoryview, param: str, max_bytes: int) -> bytes:
    """As ``parse``, of a URL in UTF-8: one that is written as nearly every client does it is decoded without a copy."""
    if (decoded := parse_plain(url, param, max_bytes)) is not None:
        return decoded
    return parse(str(url, "utf-8", "replace"), param, max_bytes)


def parse_plain(url: memoryview, param: str, max_bytes: int) -> bytes | None:
    """As ``parse_bytes``, but None for what is not written as nearly every client does it."""
    head = bytes(url[:MAX_START])
    if not head.isascii():
        return None
    start = payload_start(head.decode(), param)
    return _strictly(url[start:]) if (len(url) - start) * 3 // 4 <= max_bytes else None


def _strictly(payload: str | memoryview) -> bytes | None:
    """As nearly every client writes it, without white space and with all of its padding: looking for white space
    takes ten times as long as decoding. None for what has to be looked at."""
    try:
        return pybase64.b64decode(payload, validate=True)
    except ValueError:  # binascii.Error is one, and what says that it is not ASCII
        return None


def media_type(url: str) -> str:
    """What a URL that ``parse`` accepts calls its payload, without parameters; empty if it does not say."""
    return url[len(SCHEME) : url.index(",")].partition(";")[0]


def head(mime: str) -> str:
    """What stands before the payload."""
    return f"{SCHEME}{mime}{_MARKER},"


def write(mime: str, data: bytes) -> str:
    """A URL that any server takes."""
    return head(mime) + pybase64.b64encode_as_string(data)


def payload_start(url: str, param: str) -> int:
    """Offset of the first character after the comma."""
    if url[: len(SCHEME)].lower() != SCHEME:
        raise _invalid("no data: scheme", 0, param)
    comma = url.find(",", len(SCHEME), MAX_START)
    if comma < 0:
        raise _invalid(f"no comma within {_MAX_HEADER} characters", len(SCHEME), param)
    if not url[len(SCHEME) : comma].lower().endswith(_MARKER):
        raise _invalid("no ;base64 before the comma", comma, param)
    return comma + 1


def _not_base64(url: str, start: int, param: str) -> InvalidDataUrl:
    return _invalid("no standard base64", _first_bad_offset(url, start), param)


def _first_bad_offset(url: str, start: int) -> int:
    """Offset of the first foreign character or misplaced padding; the end when only the length is wrong.

    Linear in the payload.
    """
    foreign = _FOREIGN.search(url, start)
    padding = url.find("=", start)
    misplaced = padding >= 0 and _NOT_PADDING.search(url, padding) is not None
    offsets = ([foreign.start()] if foreign else []) + ([padding] if misplaced else [])
    return min(offsets, default=len(url))


def _invalid(what: str, offset: int, param: str) -> InvalidDataUrl:
    return InvalidDataUrl(f"Invalid data URL: {what} at offset {offset}.", param=param)
