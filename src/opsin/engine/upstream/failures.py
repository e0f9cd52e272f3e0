"""Every way in which an upstream fails → one of opsin's errors. Knows no stream state.

    before the head    refused, unresolved, TLS, closed        EngineError upstream_unavailable
    at any time        silence over a timeout                  EngineError upstream_timeout
    the head           400 413 422 …                           InvalidRequest, ContextLengthExceeded
                       400, and a picture's name unknown       PictureGone, which never leaves the engine
                       401 403                                 UpstreamMisconfigured upstream_unauthorized
                       404 405                                 UpstreamMisconfigured upstream_not_found
                       429                                     Overloaded
                       408, 5xx                                EngineError upstream_timeout, upstream_unavailable
    after the head     {"error": …} in the stream, 4xx         as of the head
                       {"error": …} with another status or no  EngineError upstream_error
                       cut, or ended without a finish          EngineError upstream_truncated
                       silent, and nobody listens there        EngineError upstream_truncated
                       ended without any text                  EngineError upstream_empty
                       not what the protocol says              EngineError upstream_protocol

Only a refusal of the request itself quotes the upstream, bounded, without base64, addresses and paths: the client can
act on it. Other texts of the upstream may name its keys and stay out.
"""

from __future__ import annotations

import re

import aiohttp
import msgspec

from opsin.core.errors import (
    Code,
    ContextLengthExceeded,
    EngineError,
    EngineOutOfMemory,
    InvalidRequest,
    OpsinError,
    Overloaded,
    UpstreamMisconfigured,
)
from opsin.engine.upstream.wire import ErrorBody, WireError

MAX_QUOTE_CHARS = 500
MAX_RETRY_AFTER_S = 3600

_PRIVATE = re.compile(
    r"data:[^\s'\"]+|[A-Za-z0-9+/=_-]{64,}"  # payload
    r"|0x[0-9a-fA-F]{4,}|\w+://[^\s'\"]+|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"  # addresses, in memory and out there
    r"|(?<![\w.<])(?:/[\w.@+-]+){2,}"  # paths
)
_CONTEXT = re.compile(r"context.?(length|size|window)", re.IGNORECASE)
_OUT_OF_MEMORY = re.compile(r"out.of.memory|OutOfMemory", re.IGNORECASE)
_GONE = re.compile(r"Cache miss for image at index (\d{1,6})\b")  # vLLM's
_CONTEXT_TYPES = ("context_length_exceeded", "exceed_context_size_error")  # OpenAI; llama-server
_OF_OPSIN = (EngineError.type, Overloaded.type)
_OPSIN_BEFORE_WORK = (Code.OVERLOADED.value, Code.ENGINE_UNAVAILABLE.value)
_REFUSAL_TYPES = ("invalid_request_error", "BadRequestError", *_CONTEXT_TYPES)


class PictureGone(InvalidRequest):
    """A picture was asked for by name, and the upstream has it no longer: nothing ran. ``index`` counts from 0."""

    def __init__(self, index: int) -> None:
        super().__init__("the upstream has a picture no longer", code=Code.UPSTREAM_REFUSED)
        self.index = index


def transport_error(error: aiohttp.ClientError | OSError, *, answered: bool) -> EngineError:
    """A failure of the connection; ``answered``: the response head had arrived. TimeoutError is an OSError."""
    failure = _transport_error(error, answered=answered)
    failure.not_begun = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    return failure


def _transport_error(error: aiohttp.ClientError | OSError, *, answered: bool) -> EngineError:
    match error:
        case TimeoutError():
            return EngineError("the upstream did not answer in time", code=Code.UPSTREAM_TIMEOUT)
        case _ if answered:
            return truncated()
        case aiohttp.ClientResponseError():
            return protocol_error("what is no HTTP answer")
        case aiohttp.ClientConnectorDNSError():
            why = "its name does not resolve"
        case aiohttp.ClientSSLError() | aiohttp.ClientConnectorCertificateError() | aiohttp.ServerFingerprintMismatch():
            why = "TLS failed"
        case aiohttp.ClientConnectorError():
            why = "connection refused or host unreachable"
        case aiohttp.ClientConnectionError() | ConnectionError():
            why = "it closed the connection"
        case _:
            why = "the connection failed"
    return EngineError(f"the upstream cannot be reached: {why}", code=Code.UPSTREAM_UNAVAILABLE)


def truncated() -> EngineError:
    """The stream ended, cleanly or not, before the upstream said that it had finished."""
    return EngineError("the upstream ended its stream before the answer was finished", code=Code.UPSTREAM_TRUNCATED)


def gone() -> EngineError:
    """The stream is open and silent, and nobody listens at the upstream's address any more."""
    return EngineError("the upstream is gone and has left its stream open", code=Code.UPSTREAM_TRUNCATED)


def empty() -> EngineError:
    """HTTP 200 and then nothing: no text, no finish."""
    return EngineError("the upstream answered without any text", code=Code.UPSTREAM_EMPTY)


def protocol_error(what: str) -> EngineError:
    """``what`` completes "the upstream sent …"."""
    return EngineError(f"the upstream sent {what}", code=Code.UPSTREAM_PROTOCOL)


def cancelled() -> EngineError:
    """``cancel`` stopped the request; whoever still reads its stream is told."""
    return EngineError("the request was cancelled", code=Code.REQUEST_CANCELLED)


def http_error(status: int, retry_after: str | None, body: bytes) -> OpsinError:
    """A response head other than 200. ``body`` may be cut or no JSON at all."""
    wire = _decode(body)
    error = _by_status(status, wire, _seconds(retry_after))
    error.not_begun = _refused_before_work(status, wire)
    return error


def _refused_before_work(status: int, wire: WireError) -> bool:
    """429, and 503 in a server's own words: it is full, or loading. A proxy's 503 may stand for a connection that broke
    at work (Envoy), and an opsin says 503 of work that failed, too: its code tells."""
    if wire.type in _OF_OPSIN:
        return wire.code in _OPSIN_BEFORE_WORK
    is_own = wire.type is not None or wire.code is not None
    return status == 429 or (status == 503 and is_own and not _OUT_OF_MEMORY.search(wire.message or ""))


def inband_error(error: WireError | str) -> OpsinError:
    """An error event after HTTP 200: how engines report a failure once the stream has begun.

    A program of several processes dies in two ways. vLLM that lives to see its engine's process die says so in the
    stream (500, then ``[DONE]``), and ends; killed whole, it cuts the stream. The first is ``upstream_error``, never
    ``upstream_unavailable``, which is for requests that found nobody; the second ``upstream_truncated``.
    """
    wire = error if isinstance(error, WireError) else WireError(message=error)
    status = _status_of(wire)
    if status is not None and status < 500:
        return _by_status(status, wire, None)
    return _failure("the upstream failed while answering", wire, Code.UPSTREAM_ERROR)


def _by_status(status: int, wire: WireError, retry_after_s: int | None) -> OpsinError:
    match status:
        case 401 | 403:
            return UpstreamMisconfigured("the upstream refuses opsin's key for it", code=Code.UPSTREAM_UNAUTHORIZED)
        case 404 | 405:
            return UpstreamMisconfigured(
                f"the upstream has no such route or model: {status}", code=Code.UPSTREAM_NOT_FOUND
            )
        case 408:
            return EngineError("the upstream timed out: 408", code=Code.UPSTREAM_TIMEOUT)
        case 429:
            return Overloaded("the upstream is full: 429", retry_after_s=retry_after_s)
        case _ if 400 <= status < 500:
            return _refusal(status, wire)
        case _ if status < 400:
            return protocol_error(f"status {status} where 200 was expected")
        case _:
            return _failure(f"the upstream failed: {status}", wire, Code.UPSTREAM_UNAVAILABLE, retry_after_s)


def _refusal(status: int, wire: WireError) -> InvalidRequest:
    if (gone := _GONE.match(wire.message or "")) is not None:
        return PictureGone(int(gone[1]))
    quote = _PRIVATE.sub("…", " ".join((wire.message or "").split()))[:MAX_QUOTE_CHARS]
    message = quote or f"the upstream refused the request: {status}"
    if wire.code in _CONTEXT_TYPES or wire.type in _CONTEXT_TYPES or _CONTEXT.search(quote):
        return ContextLengthExceeded(message)
    return InvalidRequest(message, code=Code.UPSTREAM_REFUSED)


def _failure(message: str, wire: WireError, code: Code, retry_after_s: int | None = None) -> EngineError:
    """Tells the one failure that an operator must know from all others."""
    if _OUT_OF_MEMORY.search(wire.message or ""):
        return EngineOutOfMemory(f"{message}, out of memory", retry_after_s=retry_after_s)
    return EngineError(message, code=code, retry_after_s=retry_after_s)


def _status_of(wire: WireError) -> int | None:
    """The HTTP status that an in-band error stands for, if it tells."""
    text = str(wire.code)
    if text.isascii() and text.isdigit() and 400 <= int(text) <= 599:
        return int(text)
    return 400 if wire.code in _CONTEXT_TYPES or wire.type in _REFUSAL_TYPES else None


def _decode(body: bytes) -> WireError:
    try:
        return msgspec.json.decode(body, type=ErrorBody).unwrap()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return WireError(message=body.decode(errors="replace"))


def _seconds(retry_after: str | None) -> int | None:
    """Retry-After in seconds; its date form needs the upstream's clock and is left out."""
    text = (retry_after or "").strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        return None
    return min(int(text), MAX_RETRY_AFTER_S)
