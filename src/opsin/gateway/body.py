"""Reads a request body under a byte limit, counted as it arrives."""

from __future__ import annotations

from starlette.requests import Request

from opsin.core.errors import BodyTooLarge, InvalidRequest


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Returns the body.

    Raises:
        BodyTooLarge: announced or actual length over ``max_bytes``; nothing more is read.
        InvalidRequest: a compressed body.
    """
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise InvalidRequest("compressed request bodies are not accepted", code="unsupported_content_encoding")
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"the request body is larger than {max_bytes} bytes")
