"""One HTTP/1.1 connection whose stamps are those of the socket. Knows no chat.

Written on asyncio's own transport, because it tries the socket inside ``write`` and tells when the last byte was taken;
aiohttp stamps a body when it is handed over, and uvloop sends it later. Reads are stamped before anything looks into
them. Nothing is sent twice, no redirect is followed, no proxy variable heeded, no compression offered.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

_WRITE_BYTES = 256 * 2**10
"""Handed to the socket at a time; in between, other streams are read."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go. ``authority`` is the Host header."""

    host: str
    port: int
    is_tls: bool
    authority: str
    path: str

    @classmethod
    def of(cls, url: str) -> Endpoint:
        """Of a server's base URL, with or without ``/v1``."""
        parts = urlsplit(url)
        is_tls = parts.scheme == "https"
        base = parts.path.rstrip("/").removesuffix("/v1")
        return cls(
            host=parts.hostname or "",
            port=parts.port or (443 if is_tls else 80),
            is_tls=is_tls,
            authority=parts.netloc,
            path=f"{base}/v1/chat/completions",
        )

    def head(self, *, request_id: str, body_bytes: int, api_key: str | None) -> bytes:
        """The head of one request."""
        lines = [
            f"POST {self.path} HTTP/1.1",
            f"Host: {self.authority}",
            "Content-Type: application/json",
            "Accept: text/event-stream",
            "Accept-Encoding: identity",
            f"Content-Length: {body_bytes}",
            f"X-Request-Id: {request_id}",
        ]
        if api_key is not None:
            lines.append(f"Authorization: Bearer {api_key}")
        return "\r\n".join((*lines, "", "")).encode()


class Reader(Protocol):
    """Takes a response as it arrives; see :class:`opsin.bench.reading.Reading`."""

    def head(self, t: int, status: int, *, content_type: str, retry_after: bool) -> None:
        """The head."""
        ...

    def body(self, t: int, data: bytes) -> None:
        """A piece of the body."""
        ...

    def broken(self, what: str) -> None:
        """The bytes are no HTTP."""
        ...

    def end(self, t: int, *, whole: bool) -> None:
        """The body is over."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether nothing that follows can matter."""
        ...


class Connection(asyncio.Protocol):
    """One connection, one request at a time. ``clock`` gives nanoseconds."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._reader: Reader | None = None
        self._over = asyncio.Event()  # the answer is
        self._ended = asyncio.Event()  # the response is, or the connection
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._keeps_alive = False
        self._read_at = 0
        self.is_open = True
        self.idle_since = 0

    @classmethod
    async def open(cls, endpoint: Endpoint, clock: Callable[[], int]) -> Connection:
        """Raises OSError, of which socket.gaierror and ssl.SSLError are kinds."""
        context = ssl.create_default_context() if endpoint.is_tls else None
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: cls(clock), endpoint.host, endpoint.port, ssl=context, happy_eyeballs_delay=0.25
        )
        return connection

    async def send(self, reader: Reader, pieces: Iterable[bytes | memoryview]) -> int | None:
        """Sends one request, whose answer goes to ``reader``.

        Returns when the socket took the last byte; None if the answer was over before that.
        """
        transport = self._begin(reader)
        for piece in pieces:
            for at in range(0, len(piece), _WRITE_BYTES):
                if at:
                    await asyncio.sleep(0)
                if self._over.is_set():
                    return None
                transport.write(piece[at : at + _WRITE_BYTES])
                await self._writable.wait()
        return None if self._ended.is_set() else self._clock()

    async def answered(self) -> None:
        """Waits for the end of the answer."""
        await self._over.wait()

    async def drained(self, within_s: float) -> bool:
        """Waits for what HTTP puts behind the answer; whether the connection can be used again."""
        try:
            async with asyncio.timeout(within_s):
                await self._ended.wait()
        except TimeoutError:
            return False
        return self.is_open and self._keeps_alive

    def close(self) -> None:
        """At once; what is in flight is lost."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def _begin(self, reader: Reader) -> asyncio.Transport:
        assert self._transport is not None, "an open connection has one"
        self._reader = reader
        self._headers = {}
        self._keeps_alive = False
        self._over.clear()
        self._ended.clear()
        return self._transport

    def _end(self, *, whole: bool) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.end(self._read_at, whole=whole)
        self._over.set()
        self._ended.set()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Every byte that the socket did not take yet pauses the writer."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)

    def pause_writing(self) -> None:
        """The socket is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The socket took all."""
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """Stamps first."""
        self._read_at = self._clock()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self._reader is not None:
                self._reader.broken(f"no HTTP: {error}")
            self._end(whole=False)
            self.close()
            return
        if self._reader is not None and self._reader.is_over:
            self._over.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """A body without length and chunks ends so; any other is cut."""
        self._read_at = self._clock()
        self.is_open = False
        self._writable.set()
        bounded = b"content-length" in self._headers or b"transfer-encoding" in self._headers
        self._end(whole=exc is None and bool(self._headers) and not bounded)

    # httptools

    def on_message_begin(self) -> None:
        """A response starts."""
        self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header line."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """The head is there; one of 1xx only announces the real one."""
        status = self._parser.get_status_code()
        if self._reader is not None and status >= 200:
            content_type = self._headers.get(b"content-type", b"").decode("latin-1")
            self._reader.head(
                self._read_at, status, content_type=content_type, retry_after=b"retry-after" in self._headers
            )

    def on_body(self, body: bytes) -> None:
        """A piece, without the framing of chunks."""
        if self._reader is not None:
            self._reader.body(self._read_at, body)

    def on_message_complete(self) -> None:
        """The response is whole."""
        if self._parser.get_status_code() >= 200:
            self._keeps_alive = self._parser.should_keep_alive()
            self._end(whole=True)
