"""The routes of uploaded files and of deletion. Thin: read, call, frame."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from opsin.cache.files import StoredFile
from opsin.core.erasure import PurgeOutcome
from opsin.core.errors import Code, InvalidRequest
from opsin.gateway.body import BodyLimits, stream_body
from opsin.gateway.chat import count_outcome
from opsin.gateway.deadline import Deadline
from opsin.gateway.erasing import FILES
from opsin.gateway.errors import as_opsin_error, to_response
from opsin.protocol.files import FileDeleted, FileList, FileObject, MediaDeleted

if TYPE_CHECKING:
    from opsin.gateway.routes import Gateway

Handler = Callable[[Request], Awaitable[msgspec.Struct | Response]]

_CLIENT_GONE = 499
_DIGEST = re.compile("[0-9a-f]{64}")
_MAX_LISTED = 10_000


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
    return [Route(path, routes.answered(handle), methods=[method]) for method, path, handle in handlers]


class _FileRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def answered(self, handle: Handler) -> Callable[[Request], Awaitable[Response]]:
        """One answer, whatever happens."""

        async def answer(request: Request) -> Response:
            try:
                answer = await handle(request)
            except ClientDisconnect:
                return Response(status_code=_CLIENT_GONE)
            except Exception as caught:  # the border of a route
                error = as_opsin_error(caught, request.state.id)
                count_outcome(self._gateway.metrics, error)
                return to_response(error)
            count_outcome(self._gateway.metrics, None)
            if isinstance(answer, Response):
                return answer
            return Response(msgspec.json.encode(answer), media_type="application/json")

        return answer

    async def add(self, request: Request) -> FileObject:
        """Like a request with one picture: under the same limits, and in the same places."""
        gateway, config = self._gateway, self._gateway.config
        caller = await gateway.auth.caller(request.headers.get("authorization"))
        scope = gateway.scopes.of(caller.tenant)
        deadline = Deadline.after(config.request_timeout_s, gateway.closing)
        with gateway.admission.admit(caller) as place:
            await place.request()
            limits = BodyLimits(gateway.uploads.max_body_bytes, config.body_timeout_s, config.min_body_bytes_per_s)
            form = gateway.uploads.form(request.headers.get("content-type", ""))
            await deadline.within(stream_body(request, limits, form.take))
            return _object(await deadline.within(gateway.uploads.add(scope, form.whole())))

    async def all(self, request: Request) -> FileList:
        files = await self._gateway.eraser.files.all(await self._scope(request))
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

    async def get(self, request: Request) -> FileObject:
        return _object(await self._gateway.eraser.files.get(await self._scope(request), request.path_params["id"]))

    async def content(self, request: Request) -> Response:
        data = await self._gateway.eraser.files.content(await self._scope(request), request.path_params["id"])
        headers = {"content-disposition": "attachment", "x-content-type-options": "nosniff"}
        return Response(data, headers=headers, media_type="application/octet-stream")

    async def delete(self, request: Request) -> FileDeleted:
        """The picture goes with the last file that holds it, and no file that is uploaded meanwhile does."""
        scope, eraser = await self._scope(request), self._gateway.eraser
        removed = await eraser.files.remove(scope, request.path_params["id"])
        tiers = dict(await eraser.erase(scope, removed.file.sha256, files=False)) if removed.is_last else {}
        tiers[FILES] = PurgeOutcome.ERASED
        return FileDeleted(removed.file.id, deleted=True, tiers=tiers)

    async def delete_media(self, request: Request) -> MediaDeleted:
        scope, sha256 = await self._scope(request), str(request.path_params["sha256"])
        if not _DIGEST.fullmatch(sha256):
            raise InvalidRequest("a digest is 64 lower-case hex digits", code=Code.INVALID_DIGEST, param="sha256")
        tiers = await self._gateway.eraser.erase(scope, sha256)
        return MediaDeleted(_is_gone(tiers), tiers, sha256=sha256)

    async def delete_all(self, request: Request) -> MediaDeleted:
        await self._gateway.auth.admin(request.headers.get("authorization"))
        tenant = str(request.path_params["tenant"])
        tiers = await self._gateway.eraser.erase(self._gateway.scopes.of(tenant), None)
        return MediaDeleted(_is_gone(tiers), tiers, tenant=tenant)

    async def _scope(self, request: Request) -> str:
        """Raises Unauthorized."""
        caller = await self._gateway.auth.caller(request.headers.get("authorization"))
        return self._gateway.scopes.of(caller.tenant)


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
