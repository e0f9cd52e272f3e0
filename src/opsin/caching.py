"""What the settings ask to be kept of pictures, as tiers that work together."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import SecretStr

from opsin.cache.config import CacheConfig
from opsin.cache.disk import DiskTier
from opsin.cache.expiring import Expiring
from opsin.cache.files import FileShelf
from opsin.cache.journal import Apply, Journal
from opsin.cache.keys import Scopes
from opsin.cache.memory import MemoryTier
from opsin.cache.redis_link import RedisLink
from opsin.cache.redis_tier import RedisTier
from opsin.cache.seal import Seal
from opsin.cache.store import Store
from opsin.cache.tier import Tier, TierError
from opsin.cache.tombstones import Tombstones
from opsin.cache.urls import UrlMemory
from opsin.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

REDIS_QUOTA_BYTES = 256 * 2**20
"""Of one tenant, where the operator states none: what a Redis server has in all is not ours to know."""
_FILES = "files"


@dataclass(frozen=True, slots=True)
class Caches:
    """Everything that is kept, and who decides under which names."""

    scopes: Scopes
    tombstones: Tombstones
    store: Store
    files: FileShelf
    urls: UrlMemory
    link: RedisLink | None
    journal: Journal | None
    expiring: Expiring

    async def start(self, apply: Apply) -> None:
        """Looks at the Redis server, which may also come later, and follows what others delete."""
        self.expiring.start()
        if self.link is None or self.journal is None:
            return
        self.journal.start(apply)
        try:
            problem = await self.link.policy_problem()
        except TierError as error:
            problem = f"Redis cannot be used ({error.reason}); until it does nothing is found there"
        if problem is not None:
            logger.warning("%s", problem)

    async def close(self) -> None:
        """Gives back connections and folders. Safe to call twice."""
        await self.expiring.close()
        if self.journal is not None:
            await self.journal.close()
        await self.store.close()
        await self.files.close()
        if self.link is not None:
            await self.link.close()


def caches_of(config: CacheConfig, metrics: Metrics, *, secret: bytes | None, url: SecretStr | None) -> Caches:
    """Composes the tiers; nothing is dialled yet. Raises ConfigError.

    ``secret`` is the server's, None where it has none that lasts; ``url`` is of a Redis server.
    """
    if secret is None and (url or config.dir):
        logger.warning(
            "%s",
            "there is no --server-secret-file: other gateways, and this one after a restart, can neither use nor "
            "delete what it keeps",
        )
    key = hashlib.sha256(secret).digest() if secret else secrets.token_bytes(32)
    seal, scopes, tombstones = Seal(key), Scopes(key), Tombstones(config.tombstone_ttl_s)
    link = RedisLink(url.get_secret_value(), config.redis_timeout_s) if url else None
    tiers = list(_tiers(config, seal, tombstones, link))
    store = Store(tiers, scopes, metrics, ttl_s=config.ttl_s, max_value_bytes=config.max_value_bytes)
    shelf = FileShelf(
        _file_tier(config, seal, link),
        scopes,
        quota_bytes=config.max_file_bytes_per_tenant,
        max_files=config.max_files_per_tenant,
        ttl_s=config.file_ttl_s,
    )
    urls = UrlMemory(store, scopes, tombstones, max_age_s=config.url_ttl_s, ttl_s=config.ttl_s)
    keep_s = config.ttl_s + config.tombstone_ttl_s  # what is older is gone from everywhere
    return Caches(
        scopes=scopes,
        tombstones=tombstones,
        store=store,
        files=shelf,
        urls=urls,
        link=link,
        journal=Journal(link, scopes, key, keep_s) if link is not None else None,
        expiring=Expiring(store.expire, shelf.expire, urls.expire),
    )


def _tiers(config: CacheConfig, seal: Seal, tombstones: Tombstones, link: RedisLink | None) -> Iterator[Tier]:
    """Nearest first."""
    quota = config.max_bytes_per_tenant
    if config.memory_bytes:
        yield MemoryTier(config.memory_bytes, quota or config.memory_bytes, tombstones)
    if config.dir:
        yield DiskTier(config.dir, config.dir_bytes, quota or config.dir_bytes, seal, tombstones)
    if link is not None:
        yield RedisTier(link, "opsin:c", quota or REDIS_QUOTA_BYTES, config.ttl_s, seal, tombstones)


def _file_tier(config: CacheConfig, seal: Seal, link: RedisLink | None) -> Tier:
    """One place: the one that most gateways see. Files come by intent, so no tombstone keeps them out."""
    quota, none_buried = config.max_file_bytes_per_tenant, Tombstones(ttl_s=0)
    if link is not None:
        return RedisTier(link, "opsin:f", quota, config.file_ttl_s, seal, none_buried, evicts=False)
    if config.dir:
        return DiskTier(config.dir / _FILES, config.file_bytes, quota, seal, none_buried, evicts=False)
    return MemoryTier(config.file_bytes, quota, none_buried, evicts=False)
