"""uvicorn's HTTP, with limits on the bytes of a request's head and on the time in which it has to arrive.

uvicorn and its parser have none: a header without an end, or a byte a minute, would be taken in until memory or sockets
are gone. Headers behind a chunked body (trailers) have the same limit, and nobody gets to see them: uvicorn would put
them among those of the head, which were judged already. A body behind a wish for another protocol (``Upgrade``) is
refused, because the parser takes it for the next request.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from opsin.core.errors import HeadTooLarge, InvalidRequest, OpsinError
from opsin.gateway.config import GatewayConfig
from opsin.gateway.receive_into import DirectHttp
from opsin.protocol.response import error_body

_BODY_HEADERS = frozenset({b"content-length", b"transfer-encoding"})
_NO_UPGRADE = (
    "the request has a body and asks for another protocol; send it without Upgrade, from Java with "
    "HttpClient.Version.HTTP_1_1"
)


def http_protocol(config: GatewayConfig) -> type[DirectHttp]:
    """The class of a connection under the limits of ``config``."""

    class LimitedHttp(_LimitedHttp):
        max_bytes = config.max_header_bytes
        timeout_s = config.header_timeout_s

    return LimitedHttp


class _LimitedHttp(DirectHttp):
    max_bytes: int
    timeout_s: float

    _deadline: asyncio.TimerHandle | None = None
    """Runs while a head is awaited or incomplete."""
    _incomplete_bytes = 0
    """Received in a row without the end of a head, a piece of a body, or the end of a request."""
    _num_steps = 0
    """Such ends and pieces, so far."""
    _is_in_head = True
    _refusal: OpsinError | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] as uvicorn's
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self._num_steps
        super().data_received(data)
        self._incomplete_bytes = self._incomplete_bytes + len(data) if before == self._num_steps else 0
        if self._incomplete_bytes > self.max_bytes:
            self._refusal = self._too_large()
            self.send_400_response("")

    def on_message_begin(self) -> None:
        self._num_steps += 1
        self._is_in_head = True
        super().on_message_begin()
        self._await_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._num_steps += 1
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_steps += 1
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        self._num_steps += 1
        self._stop_waiting()
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > self.max_bytes:
            self._refusal = self._too_large()
        elif self._has_body() and self.parser and self.parser.should_upgrade():
            self._refusal = InvalidRequest(_NO_UPGRADE)
        if self._refusal:
            raise self._refusal  # ends the parser, and uvicorn calls send_400_response
        self._is_in_head = False
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn answers to a request that it cannot read, and our own refusals in their own words; nothing more
        to a request that was answered before it was whole."""
        self._stop_waiting()
        if not self._is_in_head and self.cycle.response_started:
            self.transport.close()
            return
        if self._refusal is None:
            super().send_400_response(msg)
            return
        status = HTTPStatus(self._refusal.status)
        body = error_body(self._refusal)
        head = (
            f"HTTP/1.1 {status} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"x-should-retry: false\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _has_body(self) -> bool:
        return any(name in _BODY_HEADERS for name, _ in self.headers)

    def _too_large(self) -> HeadTooLarge:
        return HeadTooLarge(f"the headers are larger than {self.max_bytes} bytes (max_header_bytes)")

    def _await_head(self) -> None:
        self._stop_waiting()
        self._incomplete_bytes = 0
        self._deadline = self.loop.call_later(self.timeout_s, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
