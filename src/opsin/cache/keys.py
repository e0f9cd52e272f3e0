"""Scopes and feature keys.

key = H(scope, sha256(bytes), model identity, plan), where the model identity covers model id, resolved revision,
processor fingerprint, render mode, dtype and library versions. A URL is never part of a key.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

import msgspec

from opsin.vision.plan import VisionPlan


class Scopes:
    """Turns tenants into opaque scopes. The secret is made anew at each start: features live in memory only."""

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secret or secrets.token_bytes(32)

    def of(self, tenant: str) -> str:
        """HMAC(secret, tenant), hex."""
        return hmac.digest(self._secret, tenant.encode(), "sha256").hex()


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
        self._identity = _framed(model_identity)

    def key(self, scope: str, sha256: str, plan: VisionPlan) -> str:
        """64 hex digits; equal only for the same bytes, scope, model, processor and plan."""
        recipe = msgspec.json.encode((plan.recipe, plan.image_tokens)).decode()
        return hashlib.sha256(self._identity + _framed((scope, sha256, recipe))).hexdigest()


def _keyed(scope: str, parts: tuple[str, ...]) -> str:
    return hmac.digest(scope.encode(), _framed(parts), "sha256").hex()


def _framed(parts: tuple[str, ...]) -> bytes:
    """Length-prefixed, so that no two different lists give the same bytes."""
    encoded = [part.encode() for part in parts]
    return b"".join(len(part).to_bytes(8, "big") + part for part in encoded)
