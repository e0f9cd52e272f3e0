"""The table of failures: exact class, code and status."""

from __future__ import annotations

import inspect
import json
import ssl
from typing import Any

import aiohttp
import pytest
from aiohttp import client_exceptions
from aiohttp.client_reqrep import ConnectionKey
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from opsin.core.errors import (
    ContextLengthExceeded,
    EngineError,
    EngineOutOfMemory,
    InvalidRequest,
    OpsinError,
    Overloaded,
    UpstreamMisconfigured,
)
from opsin.engine.upstream.failures import http_error, inband_error, transport_error
from opsin.engine.upstream.wire import WireError

KEY = ConnectionKey("10.0.0.7", 8000, False, True, None, None, None)
REQUEST = aiohttp.RequestInfo(URL("http://10.0.0.7"), "POST", CIMultiDictProxy(CIMultiDict[str]()))


def wrapped(**error: Any) -> bytes:
    return json.dumps({"error": error}).encode()


@pytest.mark.parametrize(
    ("status", "body", "kind", "code"),
    [
        (
            400,
            wrapped(message="bad", type="invalid_request_error", code="bad_thing"),
            InvalidRequest,
            "upstream_refused",
        ),
        (400, wrapped(message="bad", code=400), InvalidRequest, "upstream_refused"),
        (400, wrapped(message="bad", code="Not A Code!"), InvalidRequest, "upstream_refused"),
        (422, b'{"detail":[{"loc":["body"]}]}', InvalidRequest, "upstream_refused"),
        (413, b"<html>too large</html>", InvalidRequest, "upstream_refused"),
        (400, wrapped(message="x", code="context_length_exceeded"), ContextLengthExceeded, "context_length_exceeded"),
        (400, wrapped(message="x", type="exceed_context_size_error"), ContextLengthExceeded, "context_length_exceeded"),
        (
            400,
            json.dumps({"object": "error", "message": "maximum context length is 4096", "code": 400}).encode(),
            ContextLengthExceeded,
            "context_length_exceeded",
        ),
        (401, wrapped(message="wrong key sk-123"), UpstreamMisconfigured, "upstream_unauthorized"),
        (403, b"", UpstreamMisconfigured, "upstream_unauthorized"),
        (404, b"", UpstreamMisconfigured, "upstream_not_found"),
        (405, b"", UpstreamMisconfigured, "upstream_not_found"),
        (408, b"", EngineError, "upstream_timeout"),
        (429, b"", Overloaded, "overloaded"),
        (302, b"", EngineError, "upstream_protocol"),
        (500, wrapped(message="CUDA out of memory. at /opt/vllm"), EngineOutOfMemory, "engine_out_of_memory"),
        (502, b"\xff\xfe", EngineError, "upstream_unavailable"),
        (503, b"null", EngineError, "upstream_unavailable"),
    ],
)
def test_every_status(status: int, body: bytes, kind: type[OpsinError], code: str) -> None:
    error = http_error(status, None, body)
    assert (type(error), error.code) == (kind, code)
    assert "sk-123" not in error.message
    assert "/opt" not in error.message


def test_a_refusal_quotes_the_upstream_within_bounds() -> None:
    assert http_error(400, None, wrapped(message="no  such\nthing")).message == "no such thing"
    assert len(http_error(400, None, wrapped(message="x " * 5000)).message) == 500
    quoted = "input: {'url': 'data:image/png;base64,AAAA'} " + "A" * 64
    assert http_error(400, None, wrapped(message=quoted)).message == "input: {'url': '…'} …"


@pytest.mark.parametrize(
    ("said", "quoted"),
    [
        (
            "cannot identify image file <_io.BytesIO object at 0x7fd1c04c2a70>",
            "cannot identify image file <_io.BytesIO object at …>",
        ),
        ("no such file: '/opt/models/qwen/vocab.json'", "no such file: '…'"),
        ("fetching http://10.0.0.7:8000/a.png?key=1 failed at 10.0.0.7:8000", "fetching … failed at …"),
        ("either text and/or pictures, 1/2 of </s>", "either text and/or pictures, 1/2 of </s>"),
    ],
)
def test_a_refusal_quotes_no_address_and_no_path(said: str, quoted: str) -> None:
    assert http_error(400, None, wrapped(message=said)).message == quoted


def test_out_of_memory_is_named_in_our_words() -> None:
    error = http_error(500, None, wrapped(message="CUDA out of memory. Tried to allocate 2 GiB"))
    assert error.message == "the upstream failed: 500, out of memory"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7), (" 30 ", 30), ("999999", 3600), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("-1", None), (None, None)],
)
def test_retry_after(header: str | None, seconds: int | None) -> None:
    assert http_error(429, header, b"").retry_after_s == seconds
    assert http_error(503, header, b"").retry_after_s == seconds


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (WireError(message="out of memory", code=500), EngineOutOfMemory, "engine_out_of_memory"),
        (WireError(message="oom", type="server_error"), EngineError, "upstream_error"),
        ("something broke", EngineError, "upstream_error"),
        (WireError(message="EngineCore encountered an issue.", code=500), EngineError, "upstream_error"),
        (WireError(message="loading", code=503), EngineError, "upstream_error"),
        (WireError(message="bad", type="BadRequestError", code=400), InvalidRequest, "upstream_refused"),
        (WireError(message="bad", type="invalid_request_error", code="bad_stop"), InvalidRequest, "upstream_refused"),
        (WireError(message="x", code="context_length_exceeded"), ContextLengthExceeded, "context_length_exceeded"),
        (WireError(message="full", code="429"), Overloaded, "overloaded"),
        (WireError(), EngineError, "upstream_error"),
    ],
)
def test_every_error_event(error: WireError | str, kind: type[OpsinError], code: str) -> None:
    mapped = inband_error(error)
    assert (type(mapped), mapped.code) == (kind, code)


@pytest.mark.parametrize(
    ("error", "before", "after"),
    [
        (aiohttp.ServerTimeoutError(), "upstream_timeout", "upstream_timeout"),
        (TimeoutError(), "upstream_timeout", "upstream_timeout"),
        (aiohttp.ServerDisconnectedError(), "upstream_unavailable", "upstream_truncated"),
        (aiohttp.ClientPayloadError("10.0.0.7"), "upstream_unavailable", "upstream_truncated"),
        (aiohttp.ClientOSError(104, "10.0.0.7"), "upstream_unavailable", "upstream_truncated"),
        (ConnectionResetError(104, "10.0.0.7"), "upstream_unavailable", "upstream_truncated"),
        (aiohttp.ClientConnectorError(KEY, OSError(111, "refused")), "upstream_unavailable", "upstream_truncated"),
        (aiohttp.ClientConnectorDNSError(KEY, OSError(-2, "name")), "upstream_unavailable", "upstream_truncated"),
        (aiohttp.ClientConnectorCertificateError(KEY, ssl.CertificateError("x")), "upstream_unavailable", None),
        (aiohttp.InvalidURL("http://10.0.0.7"), "upstream_unavailable", "upstream_truncated"),
        (aiohttp.ClientResponseError(REQUEST, (), message="10.0.0.7"), "upstream_protocol", "upstream_truncated"),
    ],
)
def test_every_transport_failure(error: aiohttp.ClientError | OSError, before: str, after: str | None) -> None:
    early = transport_error(error, answered=False)
    assert early.code == before
    assert "10.0.0.7" not in early.message
    if after is not None:
        assert transport_error(error, answered=True).code == after


def test_all_exceptions_of_the_library_are_covered() -> None:
    """What ``except (ClientError, OSError)`` misses would escape as a bug; websockets are not used."""
    exported = {name: getattr(client_exceptions, name) for name in client_exceptions.__all__}
    missed = [
        name
        for name, kind in exported.items()
        if inspect.isclass(kind) and not issubclass(kind, (aiohttp.ClientError, OSError))
    ]
    assert missed == ["WSMessageTypeError"]


@pytest.mark.parametrize(
    ("status", "body", "not_begun"),
    [
        (429, b"", True),
        (503, wrapped(message="Loading model", type="unavailable_error", code=503), True),
        (503, wrapped(message="full", type="overloaded_error", code="overloaded"), True),
        (503, wrapped(message="ending", type="overloaded_error", code="shutting_down"), False),
        (503, wrapped(message="the engine died", type="engine_error", code="engine_died"), False),
        (503, wrapped(message="CUDA out of memory", type="internal", code=503), False),
        (503, b"upstream connect error or disconnect/reset before headers", False),
        (500, wrapped(message="broken", code=500), False),
        (502, b"", False),
        (400, wrapped(message="bad", code=400), False),
    ],
)
def test_which_answers_say_that_nothing_was_begun(status: int, body: bytes, not_begun: bool) -> None:
    assert http_error(status, None, body).not_begun is not_begun


@pytest.mark.parametrize(
    ("error", "not_begun"),
    [
        (aiohttp.ClientConnectorError(KEY, OSError("refused")), True),
        (aiohttp.ConnectionTimeoutError(), True),
        (aiohttp.SocketTimeoutError(), False),
        (aiohttp.ServerDisconnectedError(), False),
        (aiohttp.ClientResponseError(REQUEST, ()), False),
        (aiohttp.ClientOSError(), False),
        (ConnectionResetError(), False),
    ],
)
def test_only_a_connection_that_was_never_made_has_begun_nothing(error: OSError, not_begun: bool) -> None:
    assert transport_error(error, answered=False).not_begun is not_begun
