"""An id for every request, and on every answer, whatever route gave it."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from opsin.core.ids import new_request_id, safe_client_id

HEADER = "x-request-id"


class RequestIds:
    """ASGI middleware: ``request.state.id`` is ours; the answer carries ``clients_id`` instead if it is plain."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on whatever is not HTTP."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Ours is never the client's: two clients may send the same.
        own = new_request_id()
        clients = safe_client_id(Headers(scope=scope).get(HEADER))
        scope.setdefault("state", {}).update(id=own, clients_id=clients)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = clients or own
            await send(message)

        await self._app(scope, receive, send_with_id)
