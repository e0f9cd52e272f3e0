"""Scopes, records and feature keys.

key = H(scope, sha256(bytes), model identity, plan), where the model identity covers model id, resolved revision,
processor fingerprint, render mode, dtype and library versions. A URL is never part of a key.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from functools import lru_cache, partial

import msgspec

from opsin.vision.plan import VisionPlan

_MAX_KNOWN = 1024
"""Tenants whose scopes are not computed anew for each request."""


class Scopes:
    """Turns tenants into opaque scopes, and their pictures into opaque records.

    Without a ``secret`` one is made anew at each start; then nothing that outlives the process can be found again, and
    nobody else finds it either.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secret or secrets.token_bytes(32)
        self._salts: dict[str, str] = {}
        self._first_salts = [secrets.token_hex(8)]
        self._of = lru_cache(_MAX_KNOWN)(self._scope_of)
        self._salted = lru_cache(_MAX_KNOWN)(partial(self._mac, "salt"))

    def of(self, tenant: str) -> str:
        """HMAC(secret, tenant), hex."""
        return self._of(tenant)

    def record(self, scope: str, sha256: str) -> str:
        """Under what the tiers keep a picture of a scope, 64 hex digits. Only who has the secret can tell whose it is,
        so a tombstone does not keep the digest that it buries."""
        return self._mac("record", scope, sha256)

    def salted(self, scope: str) -> str:
        """The scope as an engine knows it: another one after each ``rotate``, so that what an engine keeps and cannot
        delete is never found again."""
        return self._salted(scope, self._salts.get(scope, self._first_salts[-1]))

    def all_salted(self, scope: str) -> tuple[str, ...]:
        """All names under which an engine may know it since this process started."""
        return tuple(
            {self._mac("salt", scope, salt): None for salt in (*self._first_salts, self._salts.get(scope, ""))}
        )

    def remember(self, salts: Mapping[str, str]) -> None:
        """Those that all gateways use. Until they are known each has its own, so that no salt is ever used again that
        another one has given up."""
        self._first_salts.append("")
        self._salts.update(salts)

    def rotate(self, scope: str, salt: str | None = None) -> str:
        """A new salt, or the one that another replica has chosen; returns it."""
        self._salts[scope] = salt or secrets.token_hex(8)
        return self._salts[scope]

    def _scope_of(self, tenant: str) -> str:
        return hmac.digest(self._secret, tenant.encode(), "sha256").hex()

    def _mac(self, *parts: str) -> str:
        return hmac.digest(self._secret, framed(parts), "sha256").hex()


def picture_name(scope: str, sha256: str, sent_as: str = "") -> str:
    """Names a picture in the caches of an engine that takes our word for it: 64 hex digits.

    Equal only for the same bytes, sent in the same way, within a scope; nobody without the scope can make one up.
    """
    return _keyed(scope, ("picture", sha256, sent_as))


def prefix_salt(scope: str) -> str:
    """Keeps a scope's prefixes apart in the caches of such an engine: 64 hex digits, which do not tell the scope."""
    return _keyed(scope, ("prefix",))


class FeatureKeys:
    """Makes the keys of vision features for one served model."""

    def __init__(self, model_identity: tuple[str, ...]) -> None:
        self._identity = framed(model_identity)

    def key(self, scope: str, sha256: str, plan: VisionPlan) -> str:
        """64 hex digits; equal only for the same bytes, scope, model, processor and plan."""
        recipe = msgspec.json.encode((plan.recipe, plan.image_tokens)).decode()
        return hashlib.sha256(self._identity + framed((scope, sha256, recipe))).hexdigest()


def _keyed(scope: str, parts: tuple[str, ...]) -> str:
    return hmac.digest(scope.encode(), framed(parts), "sha256").hex()


def framed(parts: tuple[str, ...]) -> bytes:
    """Length-prefixed, so that no two different lists give the same bytes."""
    encoded = [part.encode() for part in parts]
    return b"".join(len(part).to_bytes(8, "big") + part for part in encoded)
