"""How a value stands in a place that others can write to: whole and ours, or it is nothing.

    magic 4 | expires_at 8 (ms since 1970) | head length 4 | data length 8 | HMAC-SHA256 32 | head | data

The HMAC covers the address, the header and the value under a key that is derived from the server's secret, so a value
that was cut, changed, put under another name or written by somebody else does not open. Never pickle.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import time
from collections.abc import Callable

from opsin.cache.keys import framed
from opsin.cache.tier import Address, TierError, Value

_MAGIC = b"ops1"
_HEADER = struct.Struct(">4sQIQ")
_DIGEST_BYTES = 32


class Seal:
    """Seals and opens values. ``now`` is wall-clock seconds, as several machines have to agree on it."""

    def __init__(self, secret: bytes, now: Callable[[], float] = time.time) -> None:
        self._key = hmac.digest(secret, b"opsin cache values", "sha256")
        self._now = now

    def sealed(self, at: Address, value: Value, ttl_s: float) -> bytes:
        """The value as it is stored, for ``ttl_s`` seconds."""
        expires_ms = round((self._now() + ttl_s) * 1e3)
        header = _HEADER.pack(_MAGIC, expires_ms, len(value.head), len(value.data))
        return b"".join((header, self._digest(at, header, value.head, value.data), value.head, value.data))

    def opened(self, at: Address, stored: bytes) -> Value | None:
        """The value; None when it is too old. Raises TierError for what was not sealed here."""
        start = _HEADER.size + _DIGEST_BYTES
        if len(stored) < start:
            raise TierError("garbage")
        header, digest = stored[: _HEADER.size], stored[_HEADER.size : start]
        magic, expires_ms, head_length, data_length = _HEADER.unpack(header)
        if magic != _MAGIC or len(stored) != start + head_length + data_length:
            raise TierError("garbage")
        rest = memoryview(stored)[start:]
        if not hmac.compare_digest(digest, self._digest(at, header, rest)):
            raise TierError("garbage")
        if expires_ms <= self._now() * 1e3:
            return None
        return Value(bytes(rest[:head_length]), bytes(rest[head_length:]))

    def _digest(self, at: Address, header: bytes, *parts: bytes | memoryview) -> bytes:
        mac = hmac.new(self._key, framed((at.scope, at.record, at.field)), hashlib.sha256)
        mac.update(header)
        for part in parts:
            mac.update(part)
        return mac.digest()
