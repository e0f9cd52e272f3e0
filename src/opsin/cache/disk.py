"""The tier in a folder of this machine, of one gateway alone.

``FOLDER/values/SCOPE/RECORD/FIELD`` are sealed values, readable by the process's user only; a file's time of change is
when it expires. A value is written beside its place and then renamed, so that whatever ends the process leaves it whole
or not at all; what lies half written is removed at the next start.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from opsin.cache.ledger import Ledger
from opsin.cache.seal import Seal
from opsin.cache.tier import Address, TierError, Value
from opsin.cache.tombstones import Tombstones
from opsin.core.erasure import PurgeOutcome
from opsin.core.errors import ConfigError
from opsin.media.blocking import BlockingCalls

T = TypeVar("T")

_MAX_CALLS = 8


class DiskTier:
    """See Tier. ``quota_bytes`` and ``capacity_bytes`` count files as they are stored."""

    name = "disk"
    is_shared = False

    def __init__(
        self,
        folder: Path,
        capacity_bytes: int,
        quota_bytes: int,
        seal: Seal,
        tombstones: Tombstones,
        *,
        evicts: bool = True,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Takes the folder and reads what is there. Blocks. Raises ConfigError."""
        self._values, self._half = folder / "values", folder / "half-written"
        self._ledger = Ledger(capacity_bytes, quota_bytes, evicts=evicts, now=now)
        self._seal = seal
        self._tombstones = tombstones
        self._now = now
        self._calls = BlockingCalls("opsin-disk", _MAX_CALLS)
        self._writing = asyncio.Lock()  # between the look at the tombstones and the rename nothing is purged
        self._lock = _taken(folder)
        try:
            shutil.rmtree(self._half, ignore_errors=True)
            for each in (self._values, self._half):
                each.mkdir(mode=0o700, exist_ok=True)
            self._read_what_is_there()
        except OSError as error:
            raise ConfigError(f"--cache-dir {folder}: {error.strerror}") from None

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return self._ledger.size_bytes

    async def get(self, at: Address) -> Value | None:
        """See Tier."""
        stored = await self._run(partial(_read, self._path(at)))
        if stored is None:
            return None
        self._ledger.used(at.scope, at.record)
        return await self._run(partial(self._seal.opened, at, stored))

    async def put(self, at: Address, value: Value, ttl_s: float) -> bool:
        """See Tier."""
        stored = await self._run(partial(self._seal.sealed, at, value, ttl_s))
        expires_at = self._now() + ttl_s
        return await self._alone(self._kept(at, stored, expires_at))

    async def fields(self, scope: str, record: str) -> dict[str, Value]:
        """See Tier."""
        found: dict[str, Value] = {}
        for name in await self._run(partial(_names, self._values / scope / record)):
            at = Address(scope, record, name)
            try:
                value = await self.get(at)
            except TierError:  # garbage, or unreadable: that costs no other one
                continue
            if value is None:
                await self.drop(at)
            else:
                found[name] = value
        return found

    async def drop(self, at: Address) -> None:
        """See Tier."""
        await self._alone(self._dropped(at))

    async def purge(self, scope: str, record: str | None) -> PurgeOutcome:
        """See Tier."""
        return PurgeOutcome.ERASED if await self._alone(self._purged(scope, record)) else PurgeOutcome.NONE

    def alone(self, scope: str) -> AbstractAsyncContextManager[None]:
        """See Tier. No other process has it."""
        return nullcontext()

    async def expire(self) -> None:
        """See Tier."""
        await self._alone(self._expired())

    async def lift(self, scope: str, record: str) -> None:
        """See Tier. There is none."""

    async def close(self) -> None:
        """See Tier."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def _run(self, call: Callable[[], T]) -> T:
        try:
            return await self._calls.run(call)
        except OSError as error:
            raise TierError(error.strerror or "disk") from error

    async def _alone(self, change: Coroutine[Any, Any, T]) -> T:
        """One change after the other, each to its end: a thread goes on writing when its caller has left."""

        async def changed() -> T:
            async with self._writing:
                return await change

        return await asyncio.shield(changed())

    async def _kept(self, at: Address, stored: bytes, expires_at: float) -> bool:
        with suppress(TierError):  # what cannot go takes its room and nothing else
            await self._expired()
        if self._tombstones.covers(at.scope, at.record):
            return False
        path = self._path(at)
        growth = len(stored) - await self._run(partial(_size, path))
        victims = self._ledger.victims(at.scope, at.record, growth)
        if victims is None:
            return False
        await self._remove((at.scope, victim) for victim in victims)
        await self._run(partial(_write, path, self._half / secrets.token_hex(8), stored, expires_at))
        self._ledger.grow(at.scope, at.record, growth, expires_at)
        return True

    async def _dropped(self, at: Address) -> None:
        path = self._path(at)
        size = await self._run(partial(_size, path))
        await self._run(partial(path.unlink, missing_ok=True))
        self._ledger.grow(at.scope, at.record, -size, 0)
        if not await self._run(partial(_names, path.parent)):
            await self._remove([(at.scope, at.record)])

    async def _purged(self, scope: str, record: str | None) -> bool:
        doomed = self._ledger.records(scope) if record is None else (record,)
        return await self._remove((scope, one) for one in doomed)

    async def _expired(self) -> None:
        await self._remove(self._ledger.expired())

    async def _remove(self, records: Iterable[tuple[str, str]]) -> bool:
        """Whether any was there. The files first: one that cannot be deleted stays in the ledger, and keeps no other.

        Raises TierError for the last such one, in the end.
        """
        erased, failure = False, None
        for scope, record in records:
            try:
                await self._run(partial(_delete, self._values / scope / record))
            except TierError as error:
                failure = error
            else:
                erased = self._ledger.remove(scope, record) or erased
        if failure is not None:
            raise failure
        return erased

    def _read_what_is_there(self) -> None:
        """Only files of ours: behind a link is something else."""
        for folder, _, names in os.walk(self._values):
            for path in (Path(folder, name) for name in names):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and path.parent.parent.parent == self._values:
                    self._ledger.grow(path.parent.parent.name, path.parent.name, status.st_size, status.st_mtime)

    def _path(self, at: Address) -> Path:
        return self._values / at.scope / at.record / at.field


def check_folder(folder: Path) -> None:
    """Whether a tier could take the folder, by a file that goes at once; leaves nothing behind. Raises ConfigError."""
    there = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
    if not there.is_dir():
        raise ConfigError(f"--cache-dir {folder}: {there} is no folder")
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        raise ConfigError(f"--cache-dir {folder}: {there} cannot be written: {error.strerror}") from None
    if (folder / "lock").exists():
        os.close(_taken(folder))


def _taken(folder: Path) -> int:
    """A lock that ends with the process."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"--cache-dir {folder}: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise ConfigError(f"--cache-dir {folder} is in use by another process; give each gateway its own") from None
    return lock


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _write(path: Path, beside: Path, stored: bytes, expires_at: float) -> None:
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(stored)
        os.utime(beside, (expires_at, expires_at))
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []


def _delete(folder: Path) -> None:
    with suppress(FileNotFoundError):
        folder.unlink() if folder.is_symlink() else shutil.rmtree(folder)
    with suppress(OSError):  # other records are in it
        folder.parent.rmdir()
