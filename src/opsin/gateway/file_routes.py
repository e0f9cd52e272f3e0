"""The routes of uploaded files and of deletion. Thin: read, call, frame."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from opsin.cache.files import StoredFile
from opsin.core.erasure import PurgeOutcome
from opsin.core.errors import Code, DeadlineExceeded, InvalidRequest, Overloaded
from opsin.gateway.admission import Place
from opsin.gateway.auth import Caller
from opsin.gateway.body import BodyLimits, stream_body
from opsin.gateway.deadline import Deadline
from opsin.gateway.erasing import FILES, REPLICAS
from opsin.gateway.errors import as_opsin_error, to_response
from opsin.gateway.exchange import CLIENT_GONE, LAST_WORDS_S, count_answer
from opsin.gateway.rate_headers import rate_headers
from opsin.protocol.files import FileDeleted, FileList, FileObject, MediaDeleted
from opsin.telemetry.logs import fields

if TYPE_CHECKING:
    from opsin.gateway.routes import Gateway

logger = logging.getLogger(__name__)

Handler = Callable[[Request, str], Coroutine[Any, Any, msgspec.Struct | Response]]
"""With the scope of who asks."""

_DIGEST = re.compile("(?:sha256:)?([0-9a-f]{64})")
"""Alone, or as parts of messages have it."""
_MAX_LISTED = 10_000
_PIECE_BYTES = 256 * 2**10


def file_routes(gateway: Gateway) -> list[Route]:
    """For the application; each looks at the key itself."""
    routes = _FileRoutes(gateway)
    handlers: list[tuple[str, str, Handler]] = [
        ("POST", "/v1/files", routes.add),
        ("GET", "/v1/files", routes.all),
        ("GET", "/v1/files/{id}", routes.get),
        ("GET", "/v1/files/{id}/content", routes.content),
        ("DELETE", "/v1/files/{id}", routes.delete),
        ("DELETE", "/v1/media/{sha256}", routes.delete_media),
        ("DELETE", "/v1/tenants/{tenant}/media", routes.delete_all),
    ]
    return [
        Route(path, _Endpoint(gateway, f"{method} {path}", handle), methods=[method])
        for method, path, handle in handlers
    ]


class _Endpoint:
    """One route: one answer and one line in the log, whatever happens. Each counts as a request of the tenant, and
    holds its place until the client has taken the answer, which may be a whole picture."""

    def __init__(self, gateway: Gateway, route: str, handle: Handler) -> None:
        self._gateway = gateway
        self._route = route
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        deadline = Deadline.after(self._gateway.config.request_timeout_s, self._gateway.closing)
        asked = _Asked(Request(scope, receive), self._route, deadline)
        with asked.held:
            try:
                response = await self._response(asked)
                await deadline.later(LAST_WORDS_S).within(response(scope, receive, send))
            except ClientDisconnect:
                asked.log(CLIENT_GONE)
            except (DeadlineExceeded, Overloaded):
                logger.warning("a client does not read its answer and is cut off")

    async def _response(self, asked: _Asked) -> Response:
        try:
            response = await self._answer(asked)
        except ClientDisconnect:
            raise
        except Exception as caught:  # the border of a route
            error = as_opsin_error(caught, asked.http.state.id)
            count_answer(self._gateway, asked.caller, error)
            asked.log(error.status, error.code)
            response = to_response(error)
        else:
            count_answer(self._gateway, asked.caller, None)
            asked.log(response.status_code)
        if asked.place is not None:
            response.headers.update(rate_headers(asked.place.readings))
        return response

    async def _answer(self, asked: _Asked) -> Response:
        gateway = self._gateway
        asked.caller = caller = await gateway.auth.caller(asked.http.headers.get("authorization"))
        asked.place = place = asked.held.enter_context(gateway.admission.admit(caller))
        await place.request()
        answer = await asked.deadline.within(self._handle(asked.http, gateway.scopes.of(caller.tenant)))
        if isinstance(answer, Response):
            return answer
        if isinstance(answer, FileDeleted | MediaDeleted):
            asked.deleted = answer
        return Response(msgspec.json.encode(answer), media_type="application/json")


class _FileRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def add(self, request: Request, scope: str) -> FileObject:
        config, uploads = self._gateway.config, self._gateway.uploads
        limits = BodyLimits(
            uploads.max_body_bytes, "max_image_bytes", config.body_timeout_s, config.min_body_bytes_per_s
        )
        form = uploads.form(request.headers.get("content-type", ""))
        await stream_body(request, limits, form.take)
        return _object(await uploads.add(scope, form.whole()))

    async def all(self, request: Request, scope: str) -> FileList:
        files = await self._gateway.eraser.files.all(scope)
        if request.query_params.get("order") == "asc":
            files.reverse()
        after = request.query_params.get("after")
        start = next((index + 1 for index, file in enumerate(files) if file.id == after), 0) if after else 0
        limit = _limit(request.query_params.get("limit"))
        shown = files[start : start + limit]
        return FileList(
            data=[_object(file) for file in shown],
            has_more=len(files) > start + limit,
            first_id=shown[0].id if shown else None,
            last_id=shown[-1].id if shown else None,
        )

    async def get(self, request: Request, scope: str) -> FileObject:
        return _object(await self._gateway.eraser.files.get(scope, request.path_params["id"]))

    async def content(self, request: Request, scope: str) -> Response:
        data = await self._gateway.eraser.files.content(scope, request.path_params["id"])
        headers = {"content-disposition": "attachment", "x-content-type-options": "nosniff"}
        return _InPieces(data, headers=headers, media_type="application/octet-stream")

    async def delete(self, request: Request, scope: str) -> FileDeleted:
        """The picture goes with the last file that holds it, and no file that is uploaded meanwhile does."""
        eraser = self._gateway.eraser
        removed = await eraser.files.remove(scope, request.path_params["id"])
        tiers = dict(await eraser.erase(scope, removed.file.sha256, files=False)) if removed.is_last else {}
        tiers[FILES] = PurgeOutcome.ERASED
        return FileDeleted(removed.file.id, deleted=tiers.get(REPLICAS) != PurgeOutcome.UNREACHABLE, tiers=tiers)

    async def delete_media(self, request: Request, scope: str) -> MediaDeleted:
        found = _DIGEST.fullmatch(str(request.path_params["sha256"]))
        if found is None:
            raise InvalidRequest(
                "a digest is 64 lower-case hex digits, with or without 'sha256:' before them",
                code=Code.INVALID_DIGEST,
                param="sha256",
            )
        sha256 = found[1]
        tiers = await self._gateway.eraser.erase(scope, sha256)
        return MediaDeleted(_is_gone(tiers), tiers, sha256=sha256)

    async def delete_all(self, request: Request, _: str) -> MediaDeleted:
        await self._gateway.auth.admin(request.headers.get("authorization"))
        tenant = str(request.path_params["tenant"])
        tiers = await self._gateway.eraser.erase(self._gateway.scopes.of(tenant), None)
        return MediaDeleted(_is_gone(tiers), tiers, tenant=tenant)


class _InPieces(Response):
    """A body, the next piece when the client has read the last: a whole one would be the server's to keep for it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for start in range(0, len(self.body), _PIECE_BYTES):
            piece = bytes(self.body[start : start + _PIECE_BYTES])
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@dataclass(slots=True)
class _Asked:
    """One request, and what becomes known of it; ``held`` is given back at its end."""

    http: Request
    route: str
    deadline: Deadline
    held: ExitStack = field(default_factory=ExitStack)
    caller: Caller | None = None
    place: Place | None = None
    deleted: FileDeleted | MediaDeleted | None = None

    def log(self, status: int, code: str | None = None) -> None:
        """Without the file's id or digest, which are the tenant's. Of a deletion: what became of it, by tier."""
        deleted = self.deleted
        logger.info(
            "%s",
            fields(
                request_id=self.http.state.id,
                clients_id=self.http.state.clients_id,
                tenant=self.caller.tenant if self.caller and self.caller.key_id else None,
                key=self.caller.key_id if self.caller else None,
                route=self.route,
                status=status,
                code=code,
                deleted_of=deleted.tenant if isinstance(deleted, MediaDeleted) else None,
                tiers=",".join(f"{tier}:{outcome}" for tier, outcome in deleted.tiers.items()) if deleted else None,
                ms=round(self.deadline.elapsed_s * 1e3, 1),
            ),
        )


def _object(file: StoredFile) -> FileObject:
    return FileObject(
        id=file.id,
        bytes=file.num_bytes,
        created_at=file.created_at,
        expires_at=file.expires_at,
        filename=file.filename,
        sha256=file.sha256,
    )


def _is_gone(tiers: Mapping[str, PurgeOutcome]) -> bool:
    """Also an engine that has no name for it any more may keep it."""
    return PurgeOutcome.UNREACHABLE not in tiers.values()


def _limit(text: str | None) -> int:
    if text is None:
        return _MAX_LISTED
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= _MAX_LISTED):
        raise InvalidRequest(f"'limit' must be from 1 to {_MAX_LISTED}", param="limit")
    return int(text)
