"""Pictures of this machine, out of one folder that the operator opens.

The way is walked one component at a time, and no symbolic link is followed, so that what is opened is what was checked.
Blocks; belongs into a thread.

    file:///absolute/path        percent-encoded: # ? and % are %23 %3F and %25

Whatever is wrong, the refusal is one and the same, so that nobody learns which files there are.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from urllib.parse import unquote_to_bytes

from opsin.core.errors import MediaSourceForbidden

_URL = re.compile(r"file://(?:localhost)?(/[^?#\\]*)", re.IGNORECASE | re.ASCII)
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class LocalFiles:
    """The regular files below one folder."""

    def __init__(self, folder: Path) -> None:
        """``folder`` may itself be named through links; what lies in it may not."""
        self._root = folder.resolve()
        self._prefixes = tuple(dict.fromkeys((PurePosixPath(folder.absolute()), PurePosixPath(self._root))))

    def read(self, url: str, max_bytes: int) -> bytes:
        """A file's bytes, at most one more than ``max_bytes``.

        Raises:
            MediaSourceForbidden: for every other URL, and whatever else is wrong.
        """
        try:
            with self._opened(*self._components(url)) as file:
                return _read(file, max_bytes)
        except (OSError, ValueError):
            raise MediaSourceForbidden(
                "The file is not available: a file URL has the form file:///path, with # ? and % percent-encoded, and "
                "names a regular file in the folder that the operator allows."
            ) from None

    def _components(self, url: str) -> tuple[str, ...]:
        """The way from the folder. Raises ValueError."""
        found = _URL.fullmatch(url)
        if found is None or _BAD_ESCAPE.search(found[1]):
            raise ValueError
        path = os.fsdecode(unquote_to_bytes(found[1]))
        components = tuple(path.split("/")[1:])
        if "\0" in path or any(one in ("", ".", "..") for one in components):
            raise ValueError
        for prefix in self._prefixes:
            outer = prefix.parts[1:]
            if components[: len(outer)] == outer and len(components) > len(outer):
                return components[len(outer) :]
        raise ValueError

    @contextmanager
    def _opened(self, *way: str) -> Generator[int]:
        """The descriptor of a regular file. Raises OSError, ValueError."""
        *folders, name = way
        at = os.open(self._root, _FOLDER)
        try:
            for folder in folders:
                inner = os.open(folder, _FOLDER, dir_fd=at)
                os.close(at)
                at = inner
            # Looked at first, because merely opening a device can do something.
            if not stat.S_ISREG(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
                raise ValueError
            file = os.open(name, _FILE, dir_fd=at)
        finally:
            os.close(at)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise ValueError
            yield file
        finally:
            os.close(file)


def _read(file: int, max_bytes: int) -> bytes:
    with os.fdopen(file, "rb", closefd=False) as reader:
        return reader.read(max_bytes + 1)
