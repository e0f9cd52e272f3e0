"""From errors to HTTP answers; the only place that does it."""

from __future__ import annotations

import logging

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from opsin.core.errors import MethodNotAllowed, NotFound, OpsinError, Unauthorized
from opsin.gateway.request_id import HEADER
from opsin.protocol.response import error_body
from opsin.telemetry.logs import fields

logger = logging.getLogger(__name__)


_INSTEAD = {
    "completions": "prompts without messages are not served: use /v1/chat/completions",
    "responses": "OpenAI's responses are not served: use /v1/chat/completions",
}
"""For routes under /v1/ that clients know from other servers."""

_V1_ROUTES = ("/v1/chat/completions", "/v1/tokens", "/v1/files", "/v1/models")


def to_response(error: OpsinError) -> Response:
    """OpenAI's error object, with ``x-should-retry`` and ``Retry-After`` as the official SDKs read them; where a key is
    wanted, with the challenge that RFC 9110 asks for."""
    headers = {"x-should-retry": "true" if error.retryable else "false"}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(error.retry_after_s)
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    return Response(error_body(error), status_code=error.status, headers=headers, media_type="application/json")


def as_opsin_error(error: Exception, request_id: str) -> OpsinError:
    """An error that may be shown: opsin's own, or a fixed sentence in place of a bug, which is logged."""
    if isinstance(error, OpsinError):
        return error
    logger.error("%s", fields(event="internal_error", request_id=request_id), exc_info=error)
    return OpsinError("internal error; the server's log has more under this request id")


async def on_opsin_error(request: Request, error: Exception) -> Response:
    """Starlette handler for everything below a route; outside of any middleware, so it adds the id itself."""
    response = to_response(as_opsin_error(error, request.state.id))
    response.headers[HEADER] = request.state.id
    return response


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette handler for routing failures."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    if status == 405:
        response = to_response(MethodNotAllowed(f"{request.method} is not served on this route"))
        response.headers["allow"] = ", ".join(_methods(request))
        return response
    return to_response(NotFound(f"there is no such route; {_instead(request)}"))


def _methods(request: Request) -> list[str]:
    """All that its path is served with: Starlette tells those of one route, and a path may have several."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    matching = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in matching for method in route.methods or ()})


def _instead(request: Request) -> str:
    """What was probably meant: a base URL lacks its ``/v1``, or has it twice."""
    asked = request.url.path.rstrip("/")
    if meant := next((path for path in _V1_ROUTES if asked.endswith(path.removeprefix("/v1"))), None):
        return f"did you mean {meant}?"
    return _INSTEAD.get(asked.rpartition("/v1/")[2], "/docs has those that there are")
