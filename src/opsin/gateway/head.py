"""uvicorn's HTTP, with limits on the bytes of a request's head and on the time in which it has to arrive.

uvicorn and its parser have none: a header without an end, or a byte a minute, would be taken in until memory or sockets
are gone.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from opsin.core.errors import HeadTooLarge
from opsin.gateway.config import GatewayConfig
from opsin.protocol.response import error_body


def http_protocol(config: GatewayConfig) -> type[HttpToolsProtocol]:
    """The class of a connection under the limits of ``config``."""

    class LimitedHttp(_LimitedHttp):
        max_bytes = config.max_header_bytes
        timeout_s = config.header_timeout_s

    return LimitedHttp


class _LimitedHttp(HttpToolsProtocol):
    max_bytes: int
    timeout_s: float

    _deadline: asyncio.TimerHandle | None = None
    """Runs while a head is awaited or incomplete."""
    _incomplete_bytes = 0
    """Chunks that held nothing but a part of this head."""
    _is_too_large = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] as uvicorn's
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        awaited = self._deadline
        super().data_received(data)
        if awaited is not None and awaited is self._deadline:
            self._incomplete_bytes += len(data)
            if self._incomplete_bytes > self.max_bytes:
                self._is_too_large = True
                self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > self.max_bytes:
            self._is_too_large = True
            raise ValueError  # ends the parser, and uvicorn calls send_400_response
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn answers to a request that it cannot read, and 431 to one with too large a head."""
        self._stop_waiting()
        if not self._is_too_large:
            super().send_400_response(msg)
            return
        error = HeadTooLarge(f"the headers are larger than {self.max_bytes} bytes (max_header_bytes)")
        body = error_body(error)
        head = (
            f"HTTP/1.1 {error.status} Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
            f"x-should-retry: false\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _await_head(self) -> None:
        self._stop_waiting()
        self._incomplete_bytes = 0
        self._deadline = self.loop.call_later(self.timeout_s, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
