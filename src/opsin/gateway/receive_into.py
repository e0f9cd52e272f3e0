"""uvicorn's HTTP, which reads a large body from its socket straight into the memory where it stays.

By ASGI a body comes in pieces, and each piece is copied four times between the socket and the application, which then
joins them: a quarter of what a picture of 2.5 MB cost. Knows no limits; who hands in memory has judged the length.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, cast

import httptools
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MIN_BYTES = 320 * 2**10
"""A shorter body has arrived with one or two reads."""

_EXTENSION = "opsin.receive_into"

ReceiveInto = Callable[[memoryview, Callable[[int], None]], Awaitable[None]]
"""Fills memory with the next bytes of a body, of which so many have to be left, and tells as often as some have come
how many. Raises ClientDisconnect; what has come by then, or before a cancellation, is lost."""


def receive_into(scope: MutableMapping[str, Any]) -> ReceiveInto | None:
    """For a request that announces at least ``MIN_BYTES``; to be called behind a ``receive``. None: not here."""
    return cast("ReceiveInto | None", scope.get("extensions", {}).get(_EXTENSION))


class DirectHttp(HttpToolsProtocol):
    """A connection."""

    _body_left = 0
    """Of an announced length, what neither the parser nor ``_receive_into`` has seen."""

    def connection_lost(self, exc: Exception | None) -> None:
        """As uvicorn's."""
        super().connection_lost(exc)
        if self.scope is not None:  # pyright: ignore[reportUnnecessaryComparison] - before the first request
            self.scope.pop("extensions", None)  # else the two hold each other

    def on_headers_complete(self) -> None:
        """As uvicorn's."""
        self._body_left = _announced(self.headers)
        if self._body_left >= MIN_BYTES:
            self.scope["extensions"] = {_EXTENSION: self._receive_into}  # pyright: ignore[reportGeneralTypeIssues] - ASGI leaves it open
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """As uvicorn's."""
        self._body_left -= len(body)
        super().on_body(body)

    async def _receive_into(self, memory: memoryview, took: Callable[[int], None]) -> None:
        assert 0 < len(memory) <= self._body_left and not self.cycle.body, "all that has come was received"
        reading = _Reading(self, memory, took)
        self.transport.set_protocol(reading)
        self.flow.resume_reading()
        try:
            await reading.ended
        finally:
            self.flow.pause_reading()
            self.transport.set_protocol(self)
            self._pass_by(memory[: reading.num_bytes])
        if reading.num_bytes < len(memory):
            raise ClientDisconnect

    def _pass_by(self, received: memoryview) -> None:
        """Brings parser and connection to where the socket is."""
        if self.parser is None:  # pyright: ignore[reportUnnecessaryComparison] - uvicorn's way to say that it is lost
            return
        if len(received) < self._body_left:  # more follows, or this was given up: the parser is to know where it stands
            self.parser.feed_data(received)
            self.cycle.body = bytearray()
            return
        self._body_left = 0
        self.parser = httptools.HttpRequestParser(self)  # one that expects the next request
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self.on_message_complete()


class _Reading(asyncio.BufferedProtocol):
    """Stands between transport and connection until its memory is full."""

    def __init__(self, http: DirectHttp, memory: memoryview, took: Callable[[int], None]) -> None:
        self._http = http
        self._memory = memory
        self._took = took
        self.num_bytes = 0
        self.ended: asyncio.Future[None] = http.loop.create_future()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._memory[self.num_bytes :]

    def buffer_updated(self, nbytes: int) -> None:
        self.num_bytes += nbytes
        self._took(nbytes)
        if self.num_bytes == len(self._memory):
            self._http.flow.pause_reading()
            self._end()

    def eof_received(self) -> None:
        self._http.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._http.connection_lost(exc)
        self._end()

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def _announced(headers: list[tuple[bytes, bytes]]) -> int:
    """The parser has refused what is no number, and two of them."""
    return next((int(value) for name, value in headers if name == b"content-length"), 0)
