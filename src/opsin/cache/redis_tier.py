"""The tier that gateways share: a Redis server.

Of each scope, under ``PREFIX:{SCOPE}:``, with one hash slot for all of it:

    r:RECORD   hash    field → sealed value; expires as a whole
    use        zset    record → when it was last used (or expires, where nothing is evicted)
    size       hash    record → bytes that are counted for it
    total      string  their sum
    dead:RECORD, dead: a tombstone of a record, or of the whole scope
    lock       string  who is alone with the scope; ends with its lease

Every change is one script, so it happens whole or not at all, and a tombstone is looked at in the same moment. A
deletion begins with what takes no memory, after which a server that is full does not refuse the rest of a script.
Accounts are our own: what the server evicts or expires is counted until ``use`` says that it cannot be there any more.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import cast

from opsin.cache.redis_link import RedisLink, pairs_of
from opsin.cache.seal import Seal
from opsin.cache.tier import Address, TierError, Value
from opsin.cache.tombstones import Tombstones
from opsin.core.erasure import PurgeOutcome

_FORGET = """
local function forget(record)
  local counted = tonumber(redis.call('HGET', prefix .. 'size', record) or '0')
  redis.call('UNLINK', prefix .. 'r:' .. record)
  redis.call('ZREM', prefix .. 'use', record)
  redis.call('HDEL', prefix .. 'size', record)
  redis.call('INCRBY', prefix .. 'total', 0 - counted)
end
"""

_PUT = (
    "local prefix = KEYS[1]"
    + _FORGET
    + """
local record, field, value = ARGV[1], ARGV[2], ARGV[3]
local ttl_ms, score, gone, quota, evicts = tonumber(ARGV[4]), ARGV[5], ARGV[6], tonumber(ARGV[7]), ARGV[8] == '1'
if redis.call('EXISTS', prefix .. 'dead:' .. record, prefix .. 'dead:') > 0 then return -1 end
for _, old in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'use', '-inf', gone)) do
  if old ~= record then forget(old) end
end
local name = prefix .. 'r:' .. record
local counted = tonumber(redis.call('HGET', prefix .. 'size', record) or '0')
local size = #value
if redis.call('EXISTS', name) == 1 then size = size + counted - redis.call('HSTRLEN', name, field) end
local function over() return tonumber(redis.call('GET', prefix .. 'total') or '0') - counted + size > quota end
while over() do
  local first = redis.call('ZRANGE', prefix .. 'use', 0, 1)
  local victim = first[1]
  if victim == record then victim = first[2] end
  if not evicts or not victim then return 0 end
  forget(victim)
end
redis.call('HSET', name, field, value)
if redis.call('PTTL', name) < ttl_ms then redis.call('PEXPIRE', name, ttl_ms) end
redis.call('ZADD', prefix .. 'use', 'GT', score, record)
redis.call('HSET', prefix .. 'size', record, size)
redis.call('INCRBY', prefix .. 'total', size - counted)
for _, book in ipairs({'use', 'size', 'total'}) do
  if redis.call('PTTL', prefix .. book) < ttl_ms then redis.call('PEXPIRE', prefix .. book, ttl_ms) end
end
return 1
"""
)

_DROP = (
    "local prefix = KEYS[1]"
    + _FORGET
    + """
local record, name = ARGV[1], prefix .. 'r:' .. ARGV[1]
local size = redis.call('HSTRLEN', name, ARGV[2])
redis.call('HDEL', name, ARGV[2])
if redis.call('EXISTS', name) == 0 then forget(record) return end
redis.call('HINCRBY', prefix .. 'size', record, 0 - size)
redis.call('INCRBY', prefix .. 'total', 0 - size)
"""
)

_PURGE = (
    "local prefix = KEYS[1]"
    + _FORGET
    + """
local record = ARGV[1]
local doomed = {record}
if record == '' then doomed = redis.call('ZRANGE', prefix .. 'use', 0, -1) end
local erased = 0
for _, each in ipairs(doomed) do
  erased = erased + redis.call('EXISTS', prefix .. 'r:' .. each)
  forget(each)
end
if tonumber(ARGV[2]) > 0 then
  redis.call('UNLINK', prefix .. 'r:' .. record)
  redis.call('SET', prefix .. 'dead:' .. record, '', 'PX', ARGV[2])
end
return erased
"""
)

_LOCK = """
local name = KEYS[1] .. 'lock'
if redis.call('EXISTS', name) == 1 then return 0 end
redis.call('UNLINK', name)
redis.call('SET', name, ARGV[1], 'PX', ARGV[2])
return 1
"""

_UNLOCK = """
local name = KEYS[1] .. 'lock'
if redis.call('GET', name) == ARGV[1] then redis.call('UNLINK', name) end
"""

_LEASE_CALLS = 10
"""Of the link, each as slow as it may be: so long a gateway that was killed keeps the others out."""
_LOCK_POLL_S = 0.01


class RedisTier:
    """See Tier."""

    name = "redis"
    is_shared = True

    def __init__(
        self,
        link: RedisLink,
        prefix: str,
        quota_bytes: int,
        ttl_s: float,
        seal: Seal,
        tombstones: Tombstones,
        *,
        evicts: bool = True,
    ) -> None:
        """``ttl_s`` is the longest that a value is put for."""
        self._link = link
        self._prefix = prefix
        self._quota_bytes = quota_bytes
        self._ttl_s = ttl_s
        self._seal = seal
        self._tombstones = tombstones
        self._evicts = evicts

    async def get(self, at: Address) -> Value | None:
        """See Tier."""
        name = self._start(at.scope) + f"r:{at.record}"
        if self._evicts:
            used = ("ZADD", self._start(at.scope) + "use", "XX", time.time(), at.record)
            stored, _ = await self._link.commands(("HGET", name, at.field), used)
        else:
            stored = await self._link.command("HGET", name, at.field)
        return self._opened(at, stored)

    async def put(self, at: Address, value: Value, ttl_s: float) -> bool:
        """See Tier. The tombstones are those of all gateways, and this one's."""
        if self._tombstones.covers(at.scope, at.record):
            return False
        sealed, now = self._seal.sealed(at, value, ttl_s), time.time()
        score, gone = (now, now - self._ttl_s) if self._evicts else (now + ttl_s, now)
        kept = await self._script(
            _PUT, at.scope, at.record, at.field, sealed, round(ttl_s * 1e3), score, gone, self._quota_bytes,
            int(self._evicts),
        )  # fmt: skip
        return kept == 1

    async def fields(self, scope: str, record: str) -> dict[str, Value]:
        """See Tier."""
        answer = await self._link.command("HGETALL", self._start(scope) + f"r:{record}")
        found: dict[str, Value] = {}
        for name, stored in pairs_of(answer):
            at = Address(scope, record, bytes(name).decode("ascii", "replace"))
            value = await self._opened_or_dropped(at, stored)
            if value is not None:
                found[at.field] = value
        return found

    async def drop(self, at: Address) -> None:
        """See Tier."""
        await self._script(_DROP, at.scope, at.record, at.field)

    async def purge(self, scope: str, record: str | None) -> PurgeOutcome:
        """See Tier. Leaves a tombstone for all gateways."""
        erased = await self._script(_PURGE, scope, record or "", round(self._tombstones.ttl_s * 1e3))
        return PurgeOutcome.ERASED if erased else PurgeOutcome.NONE

    @asynccontextmanager
    async def alone(self, scope: str) -> AsyncGenerator[None]:
        """See Tier. Raises TierError when another one does not end in time."""
        mine, lease_s = secrets.token_hex(8), _LEASE_CALLS * self._link.timeout_s
        deadline = time.monotonic() + lease_s + self._link.timeout_s
        while not await self._script(_LOCK, scope, mine, round(lease_s * 1e3)):
            if time.monotonic() > deadline:
                raise TierError("locked")
            await asyncio.sleep(_LOCK_POLL_S)
        try:
            yield
        finally:
            with suppress(TierError):
                await self._script(_UNLOCK, scope, mine)

    async def expire(self) -> None:
        """The server does."""

    async def lift(self, scope: str, record: str) -> None:
        """Takes a tombstone away. Raises TierError."""
        await self._link.command("DEL", self._start(scope) + f"dead:{record}")

    async def close(self) -> None:
        """The link is its owner's to close."""

    def _start(self, scope: str) -> str:
        return f"{self._prefix}:{{{scope}}}:"

    async def _script(self, script: str, scope: str, *arguments: str | bytes | float) -> int:
        answer = await self._link.command("EVAL", script, 1, self._start(scope), *arguments)
        return cast("int", answer or 0)

    async def _opened_or_dropped(self, at: Address, stored: object) -> Value | None:
        """One field that is garbage costs no other one."""
        try:
            value = self._opened(at, stored)
        except TierError:
            return None
        if value is None:
            await self.drop(at)
        return value

    def _opened(self, at: Address, stored: object) -> Value | None:
        if stored is None:
            return None
        if not isinstance(stored, bytes):
            raise TierError("garbage")
        return self._seal.opened(at, stored)
