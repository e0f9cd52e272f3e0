"""The form of an upload, taken apart while it arrives.

A picture that is too large, another purpose, or what is no form at all is refused with the piece that shows it, not at
the end; the picture's digest is ready when its last byte is. Knows no tenant and no picture.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from opsin.core.errors import Code, InvalidRequest, MediaTooLarge
from opsin.protocol.files import PURPOSE

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

FORM_OVERHEAD_BYTES = 16 * 2**10
"""Of a form around its file."""
_FILE, _PURPOSE, _TTL = "file", "purpose", "expires_after[seconds]"
_MAX_PARTS = 8
_MAX_TEXT_BYTES = 1024
_MAX_FILENAME_CHARS = 255


@dataclass(frozen=True, slots=True)
class Upload:
    """What an upload says. ``ttl_s`` None: as long as the operator allows."""

    data: bytes
    sha256: str
    filename: str
    ttl_s: float | None


class UploadForm:
    """One form. ``max_file_bytes`` is of its file."""

    def __init__(self, content_type: str, max_file_bytes: int) -> None:
        """Raises InvalidRequest for what cannot be one."""
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise _not_a_form("its content type is another one")
        self._reader = _Reader(max_file_bytes)
        try:
            self._parser = MultipartParser(boundary, self._reader.callbacks())
        except FormParserError:
            raise _not_a_form("it is broken") from None

    def take(self, chunk: bytes) -> None:
        """The next piece. Raises InvalidRequest, MediaTooLarge."""
        try:
            self._parser.write(chunk)
        except FormParserError:
            raise _not_a_form("it is broken") from None

    def whole(self) -> Upload:
        """All of it. Raises InvalidRequest when something is missing."""
        reader = self._reader
        if not reader.is_whole or reader.filename is None:
            raise _not_a_form("it has no whole 'file'")
        _check_purpose(reader.texts.get(_PURPOSE, ""))
        return Upload(
            data=reader.file.getvalue(),
            sha256=reader.digest.hexdigest(),
            filename=_shown(reader.filename),
            ttl_s=_seconds(reader.texts.get(_TTL)),
        )


@dataclass(slots=True)
class _Part:
    """One field while it arrives."""

    headers: dict[str, bytes] = field(default_factory=dict[str, bytes])
    name: str = ""
    text: bytearray = field(default_factory=bytearray)


class _Reader:
    """Collects the parts of a form: the file apart, the others as texts by name."""

    def __init__(self, max_file_bytes: int) -> None:
        self._max_file_bytes = max_file_bytes
        self.file = io.BytesIO()
        self.digest = hashlib.sha256()
        self.filename: str | None = None
        self.texts: dict[str, str] = {}
        self.is_whole = False
        self._names: set[str] = set()
        self._part = _Part()
        self._header = (bytearray(), bytearray())

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self.part_begin,
            "on_header_field": self.header_field,
            "on_header_value": self.header_value,
            "on_header_end": self.header_end,
            "on_headers_finished": self.headers_finished,
            "on_part_data": self.part_data,
            "on_part_end": self.part_end,
            "on_end": self.end,
        }

    def part_begin(self) -> None:
        self._part = _Part()

    def header_field(self, data: bytes, start: int, end: int) -> None:
        self._header[0].extend(data[start:end])

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1].extend(data[start:end])

    def header_end(self) -> None:
        name, value = self._header
        self._part.headers[name.decode("latin-1").lower()] = bytes(value)
        self._header = (bytearray(), bytearray())

    def headers_finished(self) -> None:
        _, options = parse_options_header(self._part.headers.get("content-disposition", b""))
        name = self._part.name = options.get(b"name", b"").decode("utf-8", "replace")
        if name in self._names:
            raise _not_a_form("it has a field twice")
        self._names.add(name)
        if len(self._names) > _MAX_PARTS:
            raise _not_a_form(f"it has more than {_MAX_PARTS} fields")
        if name == _FILE:
            filename = options.get(b"filename")
            if filename is None:
                raise _not_a_form("its 'file' has no name, so it is none")
            self.filename = filename.decode("utf-8", "replace")

    def part_data(self, data: bytes, start: int, end: int) -> None:
        piece = memoryview(data)[start:end]
        if self._part.name == _FILE:
            self.file.write(piece)
            self.digest.update(piece)
            if self.file.tell() > self._max_file_bytes:
                raise MediaTooLarge(
                    f"The picture has more than {self._max_file_bytes} bytes (max_image_bytes).", param=_FILE
                )
            return
        self._part.text += piece
        if len(self._part.text) > _MAX_TEXT_BYTES:
            raise _not_a_form(f"a field has more than {_MAX_TEXT_BYTES} bytes")

    def part_end(self) -> None:
        text = self.texts[self._part.name] = self._part.text.decode("utf-8", "replace")
        if self._part.name == _PURPOSE:
            _check_purpose(text)

    def end(self) -> None:
        self.is_whole = True


def _shown(filename: str) -> str:
    """Without a path, and without what would break a line."""
    name = filename.replace("\\", "/").rpartition("/")[2]
    return "".join(char for char in name if char.isprintable())[:_MAX_FILENAME_CHARS] or "picture"


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        raise InvalidRequest(
            "'expires_after[seconds]' must be a whole number of seconds, at least 1",
            code=Code.INVALID_UPLOAD,
            param="expires_after",
        )
    return float(text)


def _check_purpose(purpose: str) -> None:
    if purpose != PURPOSE:
        raise InvalidRequest(f"'purpose' must be '{PURPOSE}'", code=Code.INVALID_UPLOAD, param=_PURPOSE)


def _not_a_form(why: str) -> InvalidRequest:
    return InvalidRequest(
        f"an upload must be multipart/form-data with 'purpose' and 'file': {why}", code=Code.INVALID_UPLOAD
    )
