"""One chat request to an upstream: sent, once more where a picture is gone, read to its end. Knows no other request."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from opsin.core.errors import Code, OpsinError
from opsin.core.sse import MAX_EVENT_BYTES, EventTooLarge, SseParser
from opsin.engine.api import Delta, Finished, GenerationRequest
from opsin.engine.remote import with_rest
from opsin.engine.upstream.body import Addressee, encode_body
from opsin.engine.upstream.call import Call
from opsin.engine.upstream.failures import PictureGone, cancelled, gone, protocol_error
from opsin.engine.upstream.known import KnownPictures
from opsin.engine.upstream.reply import Reply

_MAY_BE_NAMES = (Code.UPSTREAM_REFUSED, Code.UPSTREAM_UNAVAILABLE, Code.UPSTREAM_ERROR)
"""How vLLM fails where it cannot do with a name alone: not all models' processors can, and its two processes drift."""


class ChatAnswer:
    """Implements :class:`opsin.engine.remote.Answer`. Pictures in ``leased`` go by their names alone."""

    def __init__(
        self, call: Call, request: GenerationRequest, to: Addressee, leased: frozenset[str], known: KnownPictures
    ) -> None:
        self._call = call
        self._request = request
        self._to = to
        self._leased = leased
        self._known = known
        self._reply = Reply(to.dialect)
        self._num_by_name = 0

    @property
    def answered(self) -> bool:
        """See Answer."""
        return self._call.reached

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """See Answer. Raises as listed in :mod:`opsin.engine.upstream.failures`."""
        reply, parser = self._reply, SseParser()
        try:
            await self._post()
            while not reply.done and (read := await self._call.read()):
                for data in parser.feed(read):
                    delta = None if reply.done else reply.take(data)
                    if delta is not None:
                        yield delta
        except EventTooLarge:
            raise protocol_error(f"one event of over {MAX_EVENT_BYTES} bytes") from None
        except OpsinError as error:
            if error.code in _MAY_BE_NAMES:
                self._known.missed(*self._leased)
            raise

    def finish(self, took_s: float) -> Finished:
        """See Answer."""
        return with_rest(self._reply.finish(), self._to.dialect.source, took_s, self._num_by_name)

    def cancel(self) -> None:
        """See Answer."""
        self._call.stop(cancelled())

    def give_up_if_silent(self, since: float) -> None:
        """Ends a stream that had begun, and of which nothing came after that ``time.monotonic()``."""
        if self._call.heard_at is not None and self._call.heard_at < since:
            self._call.stop(gone())

    async def close(self) -> None:
        """See Answer."""
        await self._call.close(finished=self._reply.done)

    async def _post(self) -> None:
        """Once more with all bytes where a picture is gone, which is found out before anything runs."""
        pictures, by_name = self._request.pictures, self._leased
        try:
            await self._call.post(encode_body(self._request, self._to, by_name))
        except PictureGone as gone:
            if not by_name or gone.index >= len(pictures):
                raise
            self._known.missed(pictures[gone.index].key)
            by_name = frozenset[str]()
            await self._call.post(encode_body(self._request, self._to))
        self._known.found(by_name)
        self._known.sent(picture.key for picture in pictures if picture.key not in by_name)
        self._num_by_name = sum(picture.key in by_name for picture in pictures)
