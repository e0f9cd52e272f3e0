"""OpenAI's files on the wire, and what opsin answers to deletions."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

PURPOSE = "vision"


class FileObject(msgspec.Struct):
    """An uploaded file; ``sha256`` is opsin's own."""

    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    sha256: str
    purpose: str = PURPOSE
    status: str = "processed"
    object: str = "file"


class FileList(msgspec.Struct):
    """``GET /v1/files``."""

    data: list[FileObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: str = "list"


class FileDeleted(msgspec.Struct):
    """``DELETE /v1/files/{id}``. ``tiers``: erased, none, or unreachable, by place. ``deleted``: the other gateways are
    not unreachable."""

    id: str
    deleted: bool
    tiers: Mapping[str, str]
    object: str = "file"


class MediaDeleted(msgspec.Struct, omit_defaults=True):
    """``DELETE /v1/media/{sha256}`` and ``DELETE /v1/tenants/{tenant}/media``. ``deleted``: no place is
    unreachable."""

    deleted: bool
    tiers: Mapping[str, str]
    sha256: str | None = None
    tenant: str | None = None
    object: str = "media.deleted"
