"""All that gateways keep outside of their memory, read through as by one who has the server's secret."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opsin.cache.seal import Seal
from opsin.cache.tier import Address
from opsin.tenants.secret import read_or_make_secret
from tests.redis_server import RedisServer, values_of

_RECORD = re.compile(r"opsin:[cf]:\{(\w+)\}:r:(\w+)")


def everything(redis: RedisServer, folder: Path, secret: Path) -> dict[str, bytes]:
    """Names and values in Redis and on the disk, as they stand there, and behind each sealed one what is in it."""
    seal = Seal(hashlib.sha256(read_or_make_secret(secret)).digest())
    found = {str(path.relative_to(folder)): _on_disk(seal, path) for path in folder.rglob("*") if path.is_file()}
    with redis.client() as client:
        for key in client.scan_iter():  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType] its stub has none
            name = bytes(key).decode()  # pyright: ignore[reportUnknownArgumentType]
            found[name] = b"\n".join([*values_of(client, key), *_opened(seal, client, name)])  # pyright: ignore[reportUnknownArgumentType]
    return found


def _on_disk(seal: Seal, path: Path) -> bytes:
    stored = path.read_bytes()
    if path.parts[-4] != "values":
        return stored
    return stored + _plain(seal, Address(*path.parts[-3:]), stored)


def _opened(seal: Seal, client: Any, name: str) -> Iterator[bytes]:
    if (record := _RECORD.fullmatch(name)) is not None:
        for field, stored in client.hgetall(name).items():
            yield _plain(seal, Address(record[1], record[2], field.decode()), stored)


def _plain(seal: Seal, at: Address, stored: bytes) -> bytes:
    value = seal.opened(at, stored)
    return b"" if value is None else value.head + b"\n" + value.data


def holding(places: dict[str, bytes], *needles: bytes) -> list[str]:
    """The names of those in which one of the needles is."""
    return [
        name for name, value in places.items() if any(needle in name.encode() + b"\n" + value for needle in needles)
    ]
