"""What gRPC and Triton say of a failure → one of opsin's errors. Knows no stream state.

The status of an error in the stream is Triton's own (``triton_grpc_error``); an older server tells only a sentence.
Which statuses exist: https://grpc.github.io/grpc/core/md_doc_statuscodes.html.
"""

from __future__ import annotations

import re

import msgspec

from opsin.core.errors import Code, ContextLengthExceeded, EngineError, OpsinError
from opsin.engine.upstream.failures import http_error, inband_error, protocol_error, truncated
from opsin.engine.upstream.wire import WireError

_HTTP = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "UNKNOWN": 500,
    "INTERNAL": 500,
    "DATA_LOSS": 500,
    "ABORTED": 500,
}
"""As https://github.com/googleapis/googleapis/blob/master/google/rpc/code.proto, without those that are told apart."""

_TOO_LARGE = re.compile(r"larger than max|message too large", re.IGNORECASE)
_TOO_LONG = re.compile(r"maximum (?:model|context) length|longer than the maximum|max_model_len", re.IGNORECASE)
_QUEUE_FULL = re.compile(r"maximum queue size", re.IGNORECASE)


def grpc_error(status: str, message: str, *, answered: bool) -> OpsinError:
    """A call that ended with a status other than OK. ``answered``: a response had come before."""
    told = _told(message)
    if told is not None:
        return told
    match status:
        case "UNAVAILABLE" | "CANCELLED" if answered:
            return truncated()
        case "UNAVAILABLE":
            return EngineError("the upstream cannot be reached: no Triton answers", code=Code.UPSTREAM_UNAVAILABLE)
        case "DEADLINE_EXCEEDED":
            return timed_out()
        case "UNIMPLEMENTED" | "CANCELLED":
            return protocol_error(f"gRPC status {status}")
        case "RESOURCE_EXHAUSTED" if _TOO_LARGE.search(message):
            return protocol_error("a message over its limit") if answered else _http(413, message)
        case _:
            return _http(_HTTP.get(status, 500), message)


def stream_error(message: str) -> OpsinError:
    """An error in the stream that came without a status."""
    return _told(message) or inband_error(message)


def timed_out() -> EngineError:
    """Silence over a timeout."""
    return EngineError("the upstream did not answer in time", code=Code.UPSTREAM_TIMEOUT)


def _told(message: str) -> OpsinError | None:
    """What only the sentence tells: the vLLM backend reports every failure as INTERNAL, Triton a full queue as none."""
    if _QUEUE_FULL.search(message):
        return _http(429, message)
    if _TOO_LONG.search(message):
        refusal = _http(400, message)
        return ContextLengthExceeded(refusal.message)
    return None


def _http(status: int, message: str) -> OpsinError:
    """As of an upstream that speaks HTTP, which quotes only refusals, without payload and addresses."""
    return http_error(status, None, msgspec.json.encode(WireError(message=message)))
