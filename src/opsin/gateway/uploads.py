"""Uploaded pictures: taken out of their form, judged and decoded like any other, then kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from opsin.cache.files import FileShelf, StoredFile
from opsin.core.errors import Code, InvalidRequest
from opsin.gateway.erasing import Eraser
from opsin.gateway.prepare import Renderer
from opsin.media.blocking import BlockingCalls
from opsin.media.config import MediaConfig
from opsin.media.loader import inspect
from opsin.protocol.files import PURPOSE

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

FORM_OVERHEAD_BYTES = 16 * 2**10
"""Of a form around its file."""
_MAX_PARTS = 8
_MAX_TEXT_BYTES = 1024
_MAX_FILENAME_CHARS = 255
_MAX_CALLS = 4


@dataclass(frozen=True, slots=True)
class Form:
    """What an upload says. ``ttl_s`` None: as long as the operator allows."""

    data: bytes
    filename: str
    purpose: str
    ttl_s: float | None


class Uploads:
    """Takes files in. Lives in one event loop."""

    def __init__(self, files: FileShelf, renderer: Renderer, eraser: Eraser, config: MediaConfig) -> None:
        self._files = files
        self._renderer = renderer
        self._eraser = eraser
        self._config = config
        self._calls = BlockingCalls("opsin-upload", _MAX_CALLS)

    @property
    def max_body_bytes(self) -> int:
        """Of a form."""
        return self._config.max_image_bytes + FORM_OVERHEAD_BYTES

    async def add(self, scope: str, content_type: str, body: bytes) -> StoredFile:
        """Keeps the file of a form.

        Raises:
            InvalidRequest: it is no such form, or for another purpose.
            MediaError: it holds no picture that would be served.
            FileQuotaExceeded, Overloaded: as FileShelf.
        """
        form = await self._calls.run(partial(read_form, content_type, body))
        if form.purpose != PURPOSE:
            raise InvalidRequest(f"'purpose' must be '{PURPOSE}'", code=Code.INVALID_UPLOAD, param="purpose")
        media = await self._calls.run(partial(inspect, form.data, self._config, "file"))
        await self._eraser.allow(scope, media.sha256)
        await self._renderer.verify(scope, media)
        return await self._files.add(scope, media.sha256, media.data, form.filename, form.ttl_s)


@dataclass(slots=True)
class _Part:
    """One field while it arrives."""

    headers: dict[str, bytes] = field(default_factory=dict[str, bytes])
    name: str = ""
    filename: str | None = None
    data: bytearray = field(default_factory=bytearray)


class _Reader:
    """Collects the parts of a form."""

    def __init__(self) -> None:
        self.parts: dict[str, _Part] = {}
        self.is_whole = False
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
        self._part.name = options.get(b"name", b"").decode("utf-8", "replace")
        filename = options.get(b"filename")
        self._part.filename = None if filename is None else filename.decode("utf-8", "replace")

    def part_data(self, data: bytes, start: int, end: int) -> None:
        self._part.data += memoryview(data)[start:end]
        if self._part.name != "file" and len(self._part.data) > _MAX_TEXT_BYTES:
            raise _not_a_form(f"a field has more than {_MAX_TEXT_BYTES} bytes")

    def part_end(self) -> None:
        self.parts[self._part.name] = self._part
        if len(self.parts) > _MAX_PARTS:
            raise _not_a_form(f"it has more than {_MAX_PARTS} fields")

    def end(self) -> None:
        self.is_whole = True

    def text(self, name: str) -> str | None:
        part = self.parts.get(name)
        return None if part is None else part.data.decode("utf-8", "replace")


def read_form(content_type: str, body: bytes) -> Form:
    """Takes a form apart. Raises InvalidRequest."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise _not_a_form("its content type is another one")
    reader = _Reader()
    try:
        parser = MultipartParser(boundary, reader.callbacks())
        parser.write(body)
        parser.finalize()
    except FormParserError:
        raise _not_a_form("it is broken") from None
    file = reader.parts.get("file")
    if not reader.is_whole or file is None or file.filename is None:
        raise _not_a_form("it has no whole 'file'")
    return Form(
        data=bytes(file.data),
        filename=_shown(file.filename),
        purpose=reader.text("purpose") or "",
        ttl_s=_seconds(reader.text("expires_after[seconds]")),
    )


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


def _not_a_form(why: str) -> InvalidRequest:
    return InvalidRequest(
        f"an upload must be multipart/form-data with 'purpose' and 'file': {why}", code=Code.INVALID_UPLOAD
    )
