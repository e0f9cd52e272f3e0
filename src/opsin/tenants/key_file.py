"""Keys in a file of JSON lines: readable by its owner only, and whole at every moment."""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
import tempfile
from collections.abc import Generator, Hashable, Sequence
from contextlib import contextmanager
from glob import escape
from pathlib import Path

from pydantic import ValidationError

from opsin.tenants.keys import ApiKey, newest
from opsin.tenants.store import StoreUnreachable

_OWNER_ONLY = 0o600


class KeyFile:
    """See KeyStore. A change writes a new file beside the old one and puts it in its place.

    Where ``path`` is a link, that is the place of what it points to.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = path.resolve()

    async def version(self) -> Hashable:
        """Nobody writes the file but by replacing it: its inode too, as clocks are coarse, and who may read it."""
        try:
            found = self._path.stat()
        except OSError as error:
            raise self._unreadable(error) from None
        return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode

    async def all(self) -> Sequence[ApiKey]:
        """See KeyStore."""
        return await asyncio.to_thread(self._read)

    async def newest(self, tenant: str, now: float) -> ApiKey | None:
        """See KeyStore."""
        return newest(self._read_if_there(), tenant, now)

    async def add(self, key: ApiKey) -> None:
        """Makes the file where there is none."""
        with self._locked():
            self._write([*self._read_if_there(), key])

    async def remove(self, key_id: str) -> ApiKey | None:
        """See KeyStore."""
        with self._locked():
            keys = self._read()
            doomed = next((key for key in keys if key.id == key_id), None)
            if doomed is not None:
                self._write([key for key in keys if key is not doomed])
            return doomed

    async def close(self) -> None:
        """Nothing is held open."""

    def _read_if_there(self) -> list[ApiKey]:
        return self._read() if self._path.exists() else []

    def _read(self) -> list[ApiKey]:
        try:
            with self._path.open(encoding="utf-8") as file:
                _check_private(self._path, os.fstat(file.fileno()))
                return [_parsed(self._path, number, line) for number, line in enumerate(file, 1) if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise self._unreadable(error) from None

    def _write(self, keys: Sequence[ApiKey]) -> None:
        """While the folder is locked, so that whatever draft is there is of a command that was killed."""
        prefix = f".{self._place.name}-"
        try:
            for draft in self._place.parent.glob(f"{escape(prefix)}*"):
                draft.unlink()
            with tempfile.NamedTemporaryFile(
                "w", dir=self._place.parent, prefix=prefix, encoding="utf-8", delete=False
            ) as file:
                os.fchmod(file.fileno(), _OWNER_ONLY)
                file.writelines(f"{key.line()}\n" for key in keys)
                file.flush()
                os.fsync(file.fileno())
            Path(file.name).replace(self._place)
        except OSError as error:
            raise self._unreadable(error) from None

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Two commands at once would each write a file without the other's key."""
        try:
            lock = os.open(self._place.parent, os.O_RDONLY)
        except OSError as error:
            raise self._unreadable(error) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _unreadable(self, error: OSError | UnicodeDecodeError) -> StoreUnreachable:
        if not self._path.parent.is_dir():
            return StoreUnreachable(f"--api-keys-file {self._path}: there is no folder {self._path.parent}")
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        return StoreUnreachable(f"--api-keys-file {self._path}: {why}; 'opsin keys create TENANT' makes it")


def _check_private(path: Path, found: os.stat_result) -> None:
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise StoreUnreachable(f"--api-keys-file {path}: others may read or write it; chmod 600 it")


def _parsed(path: Path, number: int, line: str) -> ApiKey:
    try:
        return ApiKey.model_validate_json(line)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"])) or "JSON"
        raise StoreUnreachable(f"--api-keys-file {path}: line {number} is no key: {where} is wrong") from None
