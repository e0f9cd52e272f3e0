"""The server's secret, from which the scopes of all tenants are made.

It has to outlive restarts and be the same at every replica wherever what is cached does and is, or a tenant's own
data would be out of its reach. So it has a file of its own, which replicas are given like a certificate; Redis holds
what it protects, and therefore never the secret itself.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from contextlib import suppress
from glob import escape
from pathlib import Path

from opsin.core.errors import ConfigError

_BYTES = 32


def read_or_make_secret(path: Path) -> bytes:
    """The secret in ``path``, 32 bytes as hex; made, for its owner only, where there is none.

    Raises:
        ConfigError: the file cannot be made or read, holds something else, or others may read it.
    """
    try:
        with suppress(FileExistsError, FileNotFoundError):  # reading tells which folder is missing
            _make(path)
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"--server-secret-file {path}: {why}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(f"--server-secret-file {path}: others may read or write it; chmod 600 it")
    if not re.fullmatch(rf"[0-9a-f]{{{2 * _BYTES}}}", text):
        raise ConfigError(f"--server-secret-file {path}: should hold {2 * _BYTES} hex digits and nothing else")
    return bytes.fromhex(text)


def _make(path: Path) -> None:
    """Whole or not at all, also where two servers start at once. Raises FileExistsError, FileNotFoundError."""
    if path.exists():
        for draft in path.parent.glob(f".{escape(path.name)}-*"):  # of a server that was killed just then
            draft.unlink(missing_ok=True)
        raise FileExistsError
    draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{secrets.token_hex(_BYTES)}\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)  # unlike a rename, never over one that is there already
    finally:
        draft.unlink(missing_ok=True)
