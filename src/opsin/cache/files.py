"""Uploaded files of tenants. Kept until they expire or are deleted; a full tenant is refused, never robbed of a file.

In one tier, which evicts nothing. The list of a scope's files is a record of its own, by file id; what is in a file is
the field of its picture's record.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakValueDictionary

import msgspec

from opsin.cache.keys import Scopes
from opsin.cache.tier import Address, Kind, Tier, TierError, Value
from opsin.core.erasure import PurgeOutcome
from opsin.core.errors import Code, FileQuotaExceeded, NotFound, Overloaded

T = TypeVar("T")

_LIST = "files"
_ID_BYTES = 16
_ID = re.compile(rf"file-[0-9a-f]{{{2 * _ID_BYTES}}}")


class StoredFile(msgspec.Struct, frozen=True):
    """One upload. Times are seconds since 1970."""

    id: str
    sha256: str
    num_bytes: int
    filename: str
    created_at: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class Removed:
    """A file that is gone; ``is_last``: no other one of its tenant holds the same picture."""

    file: StoredFile
    is_last: bool


class FileShelf:
    """Files by scope, of each so many ``quota_bytes`` and ``max_files``. ``ttl_s`` is the longest that one stays."""

    def __init__(self, tier: Tier, scopes: Scopes, *, quota_bytes: int, max_files: int, ttl_s: float) -> None:
        self._tier = tier
        self._scopes = scopes
        self._quota_bytes = quota_bytes
        self._max_files = max_files
        self._ttl_s = ttl_s
        self._changing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by scope

    async def add(self, scope: str, sha256: str, data: bytes, filename: str, ttl_s: float | None) -> StoredFile:
        """Keeps a file, for ``ttl_s`` or less. A caller that leaves meanwhile has uploaded it all the same.

        Raises:
            FileQuotaExceeded: the tenant's files leave no room for it.
            Overloaded: where files are kept cannot be reached.
        """
        return await asyncio.shield(self._added(scope, sha256, data, filename, ttl_s))

    async def _added(self, scope: str, sha256: str, data: bytes, filename: str, ttl_s: float | None) -> StoredFile:
        ttl_s = min(self._ttl_s, ttl_s or self._ttl_s)
        now = int(time.time())
        file_id = f"file-{secrets.token_hex(_ID_BYTES)}"
        file = StoredFile(file_id, sha256, len(data), filename, now, now + int(ttl_s))
        content, entry = self._content(scope, sha256), Address(scope, _LIST, file_id)
        async with self._alone(scope):
            files = await self.all(scope)
            if len(files) >= self._max_files:
                raise FileQuotaExceeded(
                    f"the tenant has {len(files)} files; the limit is {self._max_files} (cache.max_files_per_tenant): "
                    "delete some"
                )
            others = [one.expires_at - now for one in files if one.sha256 == sha256]
            kept = await _reached(self._tier.put(content, Value(b"", data), max([ttl_s, *others])))
            kept = kept and await _reached(self._tier.put(entry, Value(msgspec.json.encode(file), b""), ttl_s))
        if not kept:
            raise FileQuotaExceeded(
                f"the file has {len(data)} bytes, and beside the tenant's other files there is no room for it; the "
                f"limit is {self._quota_bytes} bytes (cache.max_file_bytes_per_tenant): delete some"
            )
        return file

    async def all(self, scope: str) -> list[StoredFile]:
        """The newest first. Raises Overloaded."""
        found = await _reached(self._tier.fields(scope, _LIST))
        files = [msgspec.json.decode(value.head, type=StoredFile) for value in found.values()]
        return sorted(files, key=lambda file: (file.created_at, file.id), reverse=True)

    async def get(self, scope: str, file_id: str) -> StoredFile:
        """One file. Raises NotFound, also for those of others; Overloaded."""
        if _ID.fullmatch(file_id):
            entry = await _reached(self._tier.get(Address(scope, _LIST, file_id)))
            if entry is not None:
                return msgspec.json.decode(entry.head, type=StoredFile)
        raise NotFound("there is no such file", code=Code.FILE_NOT_FOUND)

    async def content(self, scope: str, file_id: str) -> bytes:
        """What is in it. Raises as ``get``."""
        return await self._picture(scope, (await self.get(scope, file_id)).sha256)

    async def picture(self, scope: str, sha256: str) -> bytes:
        """What this tenant has uploaded, by its digest, while there is a file of it. Raises NotFound, Overloaded."""
        if all(file.sha256 != sha256 for file in await self.all(scope)):
            raise _no_such_picture()
        return await self._picture(scope, sha256)

    async def remove(self, scope: str, file_id: str) -> Removed:
        """Forgets a file; its picture with the last one. Raises NotFound, Overloaded."""
        return await asyncio.shield(self._removed(scope, file_id))

    async def _removed(self, scope: str, file_id: str) -> Removed:
        async with self._alone(scope):
            file = await self.get(scope, file_id)
            await _reached(self._tier.drop(Address(scope, _LIST, file_id)))
            others = [one for one in await self.all(scope) if one.sha256 == file.sha256]
            if not others:
                await _reached(self._tier.purge(scope, self._scopes.record(scope, file.sha256)))
            return Removed(file, not others)

    async def purge(self, scope: str, sha256: str | None) -> PurgeOutcome:
        """Erases all files of a picture, or of a scope."""
        try:
            async with self._alone(scope):
                return await self._purged(scope, sha256)
        except Overloaded:
            return PurgeOutcome.UNREACHABLE

    async def expire(self) -> None:
        """Removes files that have ended. Raises TierError."""
        await self._tier.expire()

    async def close(self) -> None:
        """Gives back what the tier holds."""
        await self._tier.close()

    @asynccontextmanager
    async def _alone(self, scope: str) -> AsyncGenerator[None]:
        """An entry and its content come and go together, at all gateways. Raises Overloaded."""
        async with self._changing.setdefault(scope, asyncio.Lock()):
            try:
                async with self._tier.alone(scope):
                    yield
            except TierError as error:
                raise _unreachable() from error

    async def _purged(self, scope: str, sha256: str | None) -> PurgeOutcome:
        if sha256 is None:
            return await self._tier.purge(scope, None)
        for file in await self.all(scope):
            if file.sha256 == sha256:
                await self._tier.drop(Address(scope, _LIST, file.id))
        return await self._tier.purge(scope, self._scopes.record(scope, sha256))

    async def _picture(self, scope: str, sha256: str) -> bytes:
        value = await _reached(self._tier.get(self._content(scope, sha256)))
        if value is None:
            raise _no_such_picture()
        return value.data

    def _content(self, scope: str, sha256: str) -> Address:
        return Address(scope, self._scopes.record(scope, sha256), Kind.FILE.value)


def _no_such_picture() -> NotFound:
    return NotFound("no file that was uploaded has this digest", code=Code.FILE_NOT_FOUND)


async def _reached(call: Awaitable[T]) -> T:
    try:
        return await call
    except TierError as error:
        raise _unreachable() from error


def _unreachable() -> Overloaded:
    return Overloaded("the place where files are kept cannot be reached", code=Code.FILES_UNREACHABLE, retry_after_s=2)
