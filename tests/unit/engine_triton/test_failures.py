"""Every gRPC status has one of opsin's errors, and only refusals quote the server."""

from __future__ import annotations

import grpc
import pytest

from opsin.core.errors import InvalidRequest, OpsinError
from opsin.engine.triton.failures import grpc_error

SECRET = "token s3cr3t at 10.0.0.7:8001"


@pytest.mark.parametrize("status", [status.name for status in grpc.StatusCode if status is not grpc.StatusCode.OK])
@pytest.mark.parametrize("answered", [False, True])
def test_every_status_is_an_error_of_ours(status: str, answered: bool) -> None:
    error = grpc_error(status, SECRET, answered=answered)
    assert isinstance(error, OpsinError)
    assert "10.0.0.7" not in error.message
    assert isinstance(error, InvalidRequest) or "s3cr3t" not in error.message


@pytest.mark.parametrize(
    ("status", "message", "answered", "code"),
    [
        ("UNAVAILABLE", "", False, "upstream_unavailable"),
        ("UNAVAILABLE", "", True, "upstream_truncated"),
        ("DEADLINE_EXCEEDED", "", False, "upstream_timeout"),
        ("UNIMPLEMENTED", "", False, "upstream_protocol"),
        ("RESOURCE_EXHAUSTED", "Received message larger than max (9 vs. 4)", False, "upstream_refused"),
        ("RESOURCE_EXHAUSTED", "Received message larger than max (9 vs. 4)", True, "upstream_protocol"),
        ("RESOURCE_EXHAUSTED", "no place", False, "overloaded"),
        ("PERMISSION_DENIED", "", False, "upstream_unauthorized"),
        ("INTERNAL", "the maximum context length is 4096", False, "context_length_exceeded"),
    ],
)
def test_what_is_told_apart(status: str, message: str, answered: bool, code: str) -> None:
    assert grpc_error(status, message, answered=answered).code == code
