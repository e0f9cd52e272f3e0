"""A web server that misbehaves as it is told to: the other end of a fetch, for tests.

Each path has a :data:`Mode`, which writes raw bytes, so that an answer can be wrong in every way that HTTP has: lengths
that lie, bodies and headers that never end or come byte by byte, redirects, codings, silence. Knows no opsin module.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

Mode = Callable[[asyncio.StreamWriter], Awaitable[None]]
"""Writes an answer. The connection is closed when it returns, and it is cancelled when the client leaves."""

_MAX_REQUEST = 2**16


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came."""

    line: str
    headers: tuple[tuple[str, str], ...]

    def values(self, name: str) -> list[str]:
        """Of all headers of that name."""
        return [value for key, value in self.headers if key.lower() == name.lower()]


@dataclass(slots=True)
class ScriptedOrigin:
    """The state of one server. ``modes`` by path; a path of none gets 404."""

    modes: Mapping[str, Mode]
    asked: list[Asked] = field(default_factory=list[Asked])
    connections: int = 0  # made so far
    open: int = 0  # of which still open
    most_open: int = 0  # at one time
    port: int = 0
    _watching: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])  # for clients to leave

    @asynccontextmanager
    async def serve(self, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> AsyncGenerator[None]:
        """Listens on a free port, in ``port``; leaving ends what is still being answered."""
        server = await asyncio.start_server(self._serve, host, 0, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            for watcher in self._watching:
                watcher.cancel()
            await self.until_idle()

    async def until_idle(self, timeout_s: float = 30) -> None:
        """Waits until no client is connected. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while self.open:  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *headers = head.rstrip("\r\n").split("\r\n")
            pairs = (header.partition(":") for header in headers)
            self.asked.append(Asked(line, tuple((name, value.strip()) for name, _, value in pairs)))
            await self._answer(line.split(" ")[1], reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, IndexError):
            pass
        finally:
            self.open -= 1
            writer.close()
            with suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    async def _answer(self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        playing = asyncio.ensure_future(self.modes.get(path.partition("?")[0], answer(status=404))(writer))
        leaving = asyncio.create_task(_until_end(reader))
        self._watching.add(leaving)
        try:
            await asyncio.wait((playing, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._watching.discard(leaving)
            for task in (playing, leaving):
                task.cancel()
            await asyncio.gather(playing, leaving, return_exceptions=True)


async def _until_end(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while await reader.read(_MAX_REQUEST):
            pass


def raw(data: bytes) -> Mode:
    """These bytes, then the end of the connection."""

    async def mode(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return mode


def answer(body: bytes = b"", *, status: int = 200, length: str | None = None, **headers: str) -> Mode:
    """An answer; ``length`` is what it says about its length, in place of the truth. ``_`` in a name is ``-``."""
    return raw(_head(status, length=str(len(body)) if length is None else length, **headers) + body)


def redirect(location: str, status: int = 302) -> Mode:
    """To another URL."""
    return answer(status=status, location=location)


def endless_body(piece: bytes = b"\0" * 2**16, *, chunked: bool = True) -> Mode:
    """A good beginning, then ``piece`` for ever."""

    async def mode(writer: asyncio.StreamWriter) -> None:
        writer.write(_head(200, transfer_encoding="chunked") if chunked else _head(200))
        framed = b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece
        while True:
            writer.write(framed)
            await writer.drain()

    return mode


def trickled(data: bytes, interval_s: float, *, whole: bytes = b"") -> Mode:
    """``whole`` at once, then ``data`` byte by byte, for ever from its beginning."""

    async def mode(writer: asyncio.StreamWriter) -> None:
        writer.write(whole)
        while True:
            for byte in data:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(interval_s)

    return mode


def trickled_headers(interval_s: float) -> Mode:
    """Headers that never end."""
    return trickled(b"a: b\r\n", interval_s, whole=b"HTTP/1.1 200 OK\r\n")


def trickled_body(interval_s: float) -> Mode:
    """A body that never ends."""
    return trickled(b"\0", interval_s, whole=_head(200, length=str(2**20)))


async def silence(writer: asyncio.StreamWriter) -> None:
    """Takes the request and says nothing."""
    await asyncio.Event().wait()


def stalled(body: bytes, length: int) -> Mode:
    """The beginning of a body, then nothing."""

    async def mode(writer: asyncio.StreamWriter) -> None:
        writer.write(_head(200, length=str(length)) + body)
        await asyncio.Event().wait()

    return mode


def _head(status: int, *, length: str | None = None, **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Scripted"]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
