"""Where keys are kept, and what the running server knows of them."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol

from opsin.core.errors import ConfigError
from opsin.telemetry.logs import fields
from opsin.tenants.keys import ApiKey, digest_of

logger = logging.getLogger(__name__)

REFRESH_S = 1.0
"""So often, at most, the store is asked whether its keys have changed: what passes between a revocation and its
effect."""

_NOBODY = "0" * 64
"""Compared where no key is found, so that both ways take the same time."""


class StoreUnreachable(Exception):
    """The store cannot be read right now; its message is for the operator's log."""


class KeyStore(Protocol):
    """A file, or Redis. All methods raise ``StoreUnreachable``."""

    async def version(self) -> Hashable:
        """Changes whenever the keys do; cheap."""
        ...

    async def all(self) -> Sequence[ApiKey]:
        """Every key, also those that have expired, in the order in which they were made."""
        ...

    async def newest(self, tenant: str, now: float) -> ApiKey | None:
        """The tenant's last key that opens at ``now``, in Unix seconds; None also where there is no store yet."""
        ...

    async def add(self, key: ApiKey) -> None:
        """Keeps one more."""
        ...

    async def remove(self, key_id: str) -> ApiKey | None:
        """Forgets one; None where there is none of this id."""
        ...

    async def close(self) -> None:
        """Ends connections."""
        ...


class KeyRing:
    """The keys that open, as the store has them or had them at most a second ago.

    While the store cannot be read, what was read last goes on: an operator who loses it has not lost the service. Keys
    still expire in their time.
    """

    def __init__(self, store: KeyStore, clock: Callable[[], float] = time.time, refresh_s: float = REFRESH_S) -> None:
        self._store = store
        self._refresh_s = refresh_s
        self._clock = clock
        self._keys: Mapping[str, ApiKey] = {}
        self._version: Hashable = None
        self._looked_at = float("-inf")  # time.monotonic()
        self._is_reachable = True

    async def load(self) -> None:
        """For the start of a server. Raises ConfigError: the store cannot be read."""
        try:
            await self._read()
        except StoreUnreachable as error:
            raise ConfigError(str(error)) from None

    async def find(self, key: str) -> ApiKey | None:
        """Who sends this key; None for one that is unknown, revoked or expired, and no time tells which.

        A key is found by its digest, of which nobody can choose a part, and is compared in constant time all the same.
        """
        await self._refresh()
        digest = digest_of(key)
        found = self._keys.get(digest)
        is_equal = hmac.compare_digest(digest, found.digest if found else _NOBODY)
        return found if found and is_equal and not found.has_expired(self._clock()) else None

    async def close(self) -> None:
        """Ends what the store holds."""
        await self._store.close()

    async def _refresh(self) -> None:
        now = time.monotonic()
        if now - self._looked_at < self._refresh_s:
            return
        self._looked_at = now  # before the wait: of many requests at once, one asks
        try:
            await self._read()
        except StoreUnreachable as error:
            if self._is_reachable:
                logger.error("%s", fields(event="keys_unreachable", reason=str(error), known_keys=len(self._keys)))
            self._is_reachable = False

    async def _read(self) -> None:
        version = await self._store.version()
        if version != self._version:
            self._keys = {key.digest: key for key in await self._store.all()}
            self._version = version
            logger.info("%s", fields(event="keys_read", keys=len(self._keys)))
        if not self._is_reachable:
            logger.info("%s", fields(event="keys_reachable", known_keys=len(self._keys)))
        self._is_reachable = True
