"""One request to the upstream that another task can stop at any moment. Knows no chat.

Most of a request's life is one wait for the response head (queue, encode and prefill of the upstream), so stopping must
work there too, where no response exists yet that could be closed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import aiohttp
from aiohttp.abc import AbstractStreamWriter

from opsin.core.errors import EngineError, OpsinError
from opsin.engine.upstream.failures import http_error, protocol_error, transport_error

MAX_ERROR_BODY_BYTES = 64 * 2**10
_ERROR_BODY_TIMEOUT_S = 5.0
_LAST_CHUNK_TIMEOUT_S = 0.1
_PIECE_BYTES = 256 * 2**10


class Call:
    """POST, then reads. Every failure is an OpsinError; every way out ends in ``close``."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self._response: aiohttp.ClientResponse | None = None
        self._wait: asyncio.Timeout | None = None
        self._stopped: EngineError | None = None
        self.reached = False  # somebody was there, whatever became of the request
        self.heard_at: float | None = None  # time.monotonic() of the last bytes of the stream

    @property
    def answered(self) -> bool:
        """Whether the response head has arrived."""
        return self._response is not None

    def stop(self, why: EngineError) -> None:
        """Wakes whoever waits in ``post`` or ``read`` with that error, and closes the connection. Idempotent."""
        if self._stopped is not None:
            return
        self._stopped = why
        if self._wait is not None:
            self._wait.reschedule(0.0)  # in the past of any loop's clock: expires at once
        if self._response is not None:
            self._response.close()

    async def post(self, body: Sequence[bytes | memoryview]) -> None:
        """Sends a body and waits for the head; again, after one that refused.

        Raises:
            OpsinError: no stream follows.
        """
        await self.close(finished=True)
        self._response = None
        async with self._interruptible():
            response = await self._session.post(
                self._url,
                data=_JsonInPieces(body),
                headers={"Accept": "text/event-stream"},
                allow_redirects=False,  # a redirect would carry pictures and key to an address nobody configured
            )
            self._response, self.reached = response, True
            if response.status != 200:
                raise await read_failure(response)
        if response.content_type == "application/json":
            raise protocol_error("one JSON body where a stream was asked for")

    async def read(self) -> bytes:
        """The next bytes as they come; empty at the end of the stream."""
        assert self._response is not None, "read follows post"
        if self._stopped is not None:
            raise self._stopped
        try:
            read = await self._response.content.readany()  # closing the response wakes it
        except (aiohttp.ClientError, OSError) as error:
            raise self._failure(error) from None
        self.heard_at = time.monotonic()
        return read

    async def close(self, *, finished: bool) -> None:
        """Frees the connection. A ``finished`` stream has only its last HTTP chunk to come: read, so as to keep it."""
        if self._response is None:
            return
        try:
            if finished and self._stopped is None and not self._response.content.is_eof():
                async with asyncio.timeout(_LAST_CHUNK_TIMEOUT_S):
                    await self._response.content.readany()
        except (aiohttp.ClientError, OSError):
            pass  # the answer is whole; only the connection is lost
        finally:
            self._response.close()

    @asynccontextmanager
    async def _interruptible(self) -> AsyncGenerator[None, None]:
        if self._stopped is not None:
            raise self._stopped
        try:
            async with asyncio.timeout(None) as self._wait:
                yield
        except (aiohttp.ClientError, OSError) as error:
            raise self._failure(error) from None
        finally:
            self._wait = None

    def _failure(self, error: aiohttp.ClientError | OSError) -> OpsinError:
        if self._stopped is not None:
            return self._stopped
        failure = transport_error(error, answered=self.answered)
        self.reached = self.reached or not failure.not_begun
        return failure


class _JsonInPieces(aiohttp.Payload):
    """A body that is written without another copy of it, and leaves the loop to others between its pieces."""

    def __init__(self, pieces: Sequence[bytes | memoryview]) -> None:
        super().__init__(pieces, content_type="application/json")
        self._size = sum(map(len, pieces))

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """As aiohttp asks of each payload."""
        return b"".join(self._value).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """All of it."""
        for piece in self._value:
            await writer.write(memoryview(piece)[:_PIECE_BYTES])
            for start in range(_PIECE_BYTES, len(piece), _PIECE_BYTES):
                await asyncio.sleep(0)
                await writer.write(memoryview(piece)[start : start + _PIECE_BYTES])


async def read_failure(response: aiohttp.ClientResponse) -> OpsinError:
    """What a head other than 200 and as much of its body as is worth reading say."""
    body = bytearray()
    try:
        async with asyncio.timeout(_ERROR_BODY_TIMEOUT_S):
            while len(body) < MAX_ERROR_BODY_BYTES and (read := await response.content.readany()):
                body += read
    except (aiohttp.ClientError, OSError):
        pass  # the status alone says enough
    return http_error(response.status, response.headers.get("Retry-After"), bytes(body[:MAX_ERROR_BODY_BYTES]))
