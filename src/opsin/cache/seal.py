"""How a value stands in a place that others can read and write: unreadable, and whole and ours, or it is nothing.

    magic 4 | expires_at 8 (ms since 1970) | head length 4 | data length 8 | nonce 11 | head, tag 16 | data, tag 16

Head and data are two messages of AES-256-GCM, so that neither is copied to be joined or cut. They stand under the
header, and under a key of their address alone, which is derived from the server's secret: a value that was cut,
changed, put under another name or written by somebody else does not open, and who copies the place has no picture.
Never pickle.
"""

from __future__ import annotations

import hmac
import secrets
import struct
import time
from collections.abc import Callable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from opsin.cache.keys import framed
from opsin.cache.tier import Address, TierError, Value

_MAGIC = b"ops2"
_HEADER = struct.Struct(">4sQIQ")
_NONCE_BYTES = 11  # random: of one address so few values are ever written that none comes twice
_TAG_BYTES = 16
_START = _HEADER.size + _NONCE_BYTES
_HEAD, _DATA = b"h", b"d"
"""The last byte of either message's nonce."""


class Seal:
    """Seals and opens values. ``now`` is wall-clock seconds, as several machines have to agree on it."""

    def __init__(self, secret: bytes, now: Callable[[], float] = time.time) -> None:
        self._key = hmac.digest(secret, b"opsin cache values", "sha256")
        self._now = now

    def sealed(self, at: Address, value: Value, ttl_s: float) -> bytes:
        """The value as it is stored, for ``ttl_s`` seconds."""
        expires_ms = round((self._now() + ttl_s) * 1e3)
        header = _HEADER.pack(_MAGIC, expires_ms, len(value.head), len(value.data))
        nonce, cipher = secrets.token_bytes(_NONCE_BYTES), self._cipher(at)
        head = cipher.encrypt(nonce + _HEAD, value.head, header)
        return b"".join((header, nonce, head, cipher.encrypt(nonce + _DATA, value.data, header)))

    def opened(self, at: Address, stored: bytes) -> Value | None:
        """The value; None when it is too old. Raises TierError for what was not sealed here."""
        if len(stored) < _START:
            raise TierError("garbage")
        header, nonce = stored[: _HEADER.size], stored[_HEADER.size : _START]
        magic, expires_ms, head_length, data_length = _HEADER.unpack(header)
        start_of_data = _START + head_length + _TAG_BYTES
        if magic != _MAGIC or len(stored) != start_of_data + data_length + _TAG_BYTES:
            raise TierError("garbage")
        parts, cipher = memoryview(stored), self._cipher(at)
        try:
            head = cipher.decrypt(nonce + _HEAD, parts[_START:start_of_data], header)
            data = cipher.decrypt(nonce + _DATA, parts[start_of_data:], header)
        except InvalidTag:
            raise TierError("garbage") from None
        return None if expires_ms <= self._now() * 1e3 else Value(head, data)

    def _cipher(self, at: Address) -> AESGCM:
        return AESGCM(hmac.digest(self._key, framed((at.scope, at.record, at.field)), "sha256"))
