"""A chat request on its way through HTTP, from its key to the last byte of its answer. One answer, whatever happens.

What a request holds (its place, its stream) is given back when it has been answered; a client that leaves, or that does
not read, holds nothing longer.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from opsin.core.errors import DeadlineExceeded, OpsinError, Overloaded
from opsin.gateway.admission import Place
from opsin.gateway.auth import Caller
from opsin.gateway.body import BodyLimits, read_body
from opsin.gateway.cache_header import HEADER as CACHE_HEADER
from opsin.gateway.cache_header import cache_header
from opsin.gateway.chat import AnswerEvent, Begun, Done, collect, count_outcome
from opsin.gateway.count import Counted, to_wire
from opsin.gateway.deadline import HEADER as DEADLINE_HEADER
from opsin.gateway.deadline import Deadline
from opsin.gateway.errors import as_opsin_error, to_response
from opsin.gateway.intake import Taken
from opsin.gateway.presence import Presence
from opsin.gateway.rate_headers import rate_headers
from opsin.gateway.relay import Relay, Silence
from opsin.gateway.streaming import EventStream, Outcome, server_timing, to_completion, to_events, warnings_header
from opsin.protocol.response import encode
from opsin.telemetry.logs import fields

if TYPE_CHECKING:
    from opsin.gateway.routes import Gateway

logger = logging.getLogger(__name__)

CLIENT_GONE = 499
"""Logged for a client that left."""

LAST_WORDS_S = 5.0
"""For a client to read the end of its answer; one that does not read holds its place, or the server, no longer."""


@dataclass(slots=True)
class _Exchange:
    """``caller`` and ``place`` are None until it is admitted; ``held`` is given back at its end."""

    id: str
    http: Request
    presence: Presence
    held: AsyncExitStack
    deadline: Deadline
    caller: Caller | None = None
    place: Place | None = None
    outcome: Outcome = field(default_factory=Outcome)


class _Exchanges(ABC):
    """An ASGI endpoint. It looks at the key itself."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = self._gateway
        held, presence = AsyncExitStack(), Presence(receive)
        deadline = Deadline.after(gateway.config.request_timeout_s, gateway.closing)
        exchange = _Exchange(scope["state"]["id"], Request(scope, receive), presence, held, deadline)
        try:
            async with held, presence:
                response = await self._response(exchange)
                await exchange.deadline.later(LAST_WORDS_S).within(response(scope, receive, send))
        except ClientDisconnect:
            pass  # nobody is there to be answered
        except (DeadlineExceeded, Overloaded):
            logger.warning("a client does not read its answer and is cut off")
        finally:
            self._log(exchange)

    @abstractmethod
    async def _answer(self, exchange: _Exchange) -> Response:
        """Raises what the client is told as an error."""

    async def _response(self, exchange: _Exchange) -> Response:
        try:
            response = await self._answer(exchange)
        except ClientDisconnect:
            raise
        except Exception as caught:  # the border of a route: every request gets exactly one answer
            exchange.outcome.error = as_opsin_error(caught, exchange.id)
            response = to_response(exchange.outcome.error)
        if exchange.place is not None and (readings := exchange.place.readings):
            response.headers.update(rate_headers(readings))
        return response

    async def _admit(self, exchange: _Exchange) -> tuple[Caller, Place]:
        """Who asks, and the place. From now on the exchange is under the client's own deadline."""
        headers = exchange.http.headers
        exchange.caller = caller = await self._gateway.auth.caller(headers.get("authorization"))
        exchange.place = place = exchange.held.enter_context(self._gateway.admission.admit(caller))
        await place.request()
        exchange.deadline = exchange.deadline.lowered(headers.get(DEADLINE_HEADER))
        return caller, place

    async def _take(self, exchange: _Exchange) -> Taken:
        return await exchange.deadline.within(self._read(exchange))

    async def _read(self, exchange: _Exchange) -> Taken:
        config = self._gateway.config
        limits = BodyLimits(config.max_body_bytes, "max_body_bytes", config.body_timeout_s, config.min_body_bytes_per_s)
        body = await read_body(exchange.http, limits)
        exchange.presence.watch()
        return await self._gateway.intake.take(body)

    def _log(self, exchange: _Exchange) -> None:
        done, error = exchange.outcome.done, exchange.outcome.error
        gone = error is None and done is None
        if not gone:
            image_tokens = done.usage.image_tokens if isinstance(done, Done) else None
            count_answer(self._gateway, exchange.caller, error, image_tokens or 0)
        logger.info(
            "%s",
            fields(
                request_id=exchange.id,
                clients_id=exchange.http.state.clients_id,
                tenant=exchange.caller.tenant if exchange.caller and exchange.caller.key_id else None,
                key=exchange.caller.key_id if exchange.caller else None,
                status=CLIENT_GONE if gone else (error.status if error else 200),
                code=error.code if error else None,
                replica=_replica(error, done),
                ms=round(exchange.deadline.elapsed_s * 1e3, 1),
                counted=isinstance(done, Counted) or None,
                image_tokens=(done.usage if isinstance(done, Done) else done).image_tokens if done else None,
                completion_tokens=done.usage.completion_tokens if isinstance(done, Done) else None,
            ),
        )


class ChatExchanges(_Exchanges):
    """``POST /v1/chat/completions``."""

    async def _answer(self, exchange: _Exchange) -> Response:
        gateway = self._gateway
        caller, place = await self._admit(exchange)
        taken = await self._take(exchange)
        chat = taken.request
        served = gateway.models.named(chat.model)
        model = chat.model or served.names.default
        answer = served.chat.answer(chat, request_id=exchange.id, tenant=caller.tenant, lifted=taken.media, turns=place)
        if chat.stream:
            return await self._stream(answer, exchange, model, include_usage=chat.include_usage)
        return await self._complete(answer, exchange, model)

    async def _complete(self, answer: AsyncGenerator[AnswerEvent, None], exchange: _Exchange, model: str) -> Response:
        collected = await exchange.deadline.within(collect(answer))
        exchange.outcome.done = done = collected.done
        completion = to_completion(collected, request_id=exchange.id, model=model)
        headers = {"server-timing": server_timing(done.timeline), **_told(exchange, done)}
        return Response(completion, headers=headers, media_type="application/json")

    async def _stream(
        self, answer: AsyncGenerator[AnswerEvent, None], exchange: _Exchange, model: str, *, include_usage: bool
    ) -> Response:
        stream = Relay(answer, exchange.deadline, self._gateway.config.heartbeat_s)
        await exchange.held.enter_async_context(stream)
        # The first event decides between an HTTP error and a stream, so it is awaited before any header is sent; but
        # not in silence for longer than proxies endure.
        begun, first = await _opening(stream)
        headers = _told(exchange, begun) if begun else {}
        events = to_events(
            first, stream, exchange.outcome, request_id=exchange.id, model=model, include_usage=include_usage
        )
        return EventStream(events, exchange.outcome, headers)


class CountExchanges(_Exchanges):
    """``POST /v1/tokens``."""

    async def _answer(self, exchange: _Exchange) -> Response:
        gateway = self._gateway
        caller, _ = await self._admit(exchange)
        taken = await self._take(exchange)
        served = gateway.models.named(taken.request.model)
        scope = gateway.scopes.of(caller.tenant)
        counted = await exchange.deadline.within(served.counts.count(scope, taken.request, taken.media))
        exchange.outcome.done = counted
        headers = warnings_header(counted.warnings)
        model = taken.request.model or served.names.default
        return Response(encode(to_wire(counted, model=model)), headers=headers, media_type="application/json")


def count_answer(gateway: Gateway, caller: Caller | None, error: OpsinError | None, image_tokens: int = 0) -> None:
    """In metrics. Of a tenant by its name only where nobody but an admin sees it, and where keys bound how many there
    are; ``image_tokens`` are those that were run."""
    code = count_outcome(gateway.metrics, error)
    if caller is not None and caller.key_id is not None and gateway.config.metrics_port is None:
        gateway.metrics.answered_tenant(caller.tenant, code, image_tokens)


def _replica(error: OpsinError | None, done: Done | Counted | None) -> str | None:
    """Which one of several engines answered, or failed."""
    if error is not None:
        return error.replica
    return done.replica if isinstance(done, Done) else None


async def _opening(stream: Relay[AnswerEvent]) -> tuple[Begun | None, AnswerEvent | Silence]:
    """What headers can say, None while it is not known, and the first event behind it."""
    event = await anext(stream)
    return (event, await anext(stream)) if isinstance(event, Begun) else (None, event)


def _told(exchange: _Exchange, answer: Begun | Done) -> dict[str, str]:
    """Headers about the pictures and the prompt."""
    asked = exchange.http.headers.get(CACHE_HEADER)
    return {**warnings_header(answer.warnings), **cache_header(asked, [image.found for image in answer.images])}
