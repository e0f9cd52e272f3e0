"""How gateways that share a Redis server learn of each other's deletions, also of those while they were cut off.

A stream holds what was deleted, by opaque names: never a digest. Each gateway reads it from where it stopped, does the
same to what it keeps itself, and says how far it is. What it deletes while it is cut off it tells later. Entries carry
a keyed digest, so that nobody but a gateway can dig anything up. Only gateways of the same secret know the same names;
where another one is there, no deletion counts as done by all.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from opsin.cache.keys import Scopes
from opsin.cache.redis_link import RedisLink, pairs_of
from opsin.cache.tier import TierError
from opsin.core.erasure import PurgeOutcome
from opsin.telemetry.logs import fields

logger = logging.getLogger(__name__)

_STREAM, _REPLICAS, _SALTS = "opsin:deletions", "opsin:replicas", "opsin:salts"
_BLOCK_S = 2.0
_PAUSE_S = 0.5
_ACK_S = 2.0
"""How long a deletion waits for the other gateways to say that they have done it."""
_ACK_POLL_S = 0.02
_BATCH = 100
_MAX_UNTOLD = 10_000
_STRANGERS = (
    "other gateways at this Redis have another secret, and may keep and serve what was deleted here: start all with "
    "the same --server-secret-file, or each with a Redis database of its own (--redis-url redis://HOST/NUMBER)"
)


class Deletion(msgspec.Struct, frozen=True):
    """``record`` None: all of the scope. ``salt`` is the scope's from now on, where an engine keeps what it cannot
    delete. ``is_lifted``: the other way round, the tenant wants the record kept again."""

    scope: str
    record: str | None = None
    salt: str | None = None
    is_lifted: bool = False


Apply = Callable[[Deletion], Awaitable[None]]
"""Does to this gateway's own what another one did to its. Raises nothing."""


class _Presence(msgspec.Struct, array_like=True, frozen=True):
    """How far a gateway is in the stream, and when it said so, in seconds since 1970. ``fingerprint`` is of its
    secret, a keyed digest; empty where a gateway does not say."""

    last: str
    seen_at: float
    fingerprint: str = ""


class Journal:
    """Of one gateway. ``keep_s`` is how long entries, and gateways that were not heard of, count. Lives in one loop."""

    def __init__(self, link: RedisLink, scopes: Scopes, secret: bytes, keep_s: float) -> None:
        self._link = link
        self._scopes = scopes
        self._key = hmac.digest(secret, b"opsin deletions", "sha256")
        self._fingerprint = hmac.digest(secret, b"opsin fingerprint", "sha256").hex()
        self._keep_s = keep_s
        self._id = secrets.token_hex(8)
        self._last = "0-0"
        self._untold: deque[Deletion] = deque(maxlen=_MAX_UNTOLD)
        self._following: asyncio.Task[None] | None = None

    def start(self, apply: Apply) -> None:
        """Follows the stream until ``close``."""
        self._following = asyncio.create_task(self._follow(apply))

    async def close(self) -> None:
        """Says that this gateway is gone, and with it what it kept. Safe to call twice."""
        following, self._following = self._following, None
        if following is None:
            return
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        with suppress(TierError):
            await self._link.command("HDEL", _REPLICAS, self._id)

    async def tell(self, deletion: Deletion) -> PurgeOutcome:
        """Tells the other gateways; whether all of them have done it."""
        try:
            entry = await self._add(deletion)
            return await self._done_by_all(entry)
        except TierError as error:
            self._untold.append(deletion)
            logger.warning("%s", fields(event="deletion_not_told", reason=error.reason))
            return PurgeOutcome.UNREACHABLE

    async def _add(self, deletion: Deletion) -> str:
        if deletion.salt is not None:
            await self._link.command("HSET", _SALTS, deletion.scope, deletion.salt)
        body = msgspec.json.encode(deletion)
        # By the clock that made the entries: one that is ahead here would take away what others have not read yet.
        seconds, _ = await self._link.command("TIME")
        oldest = f"{round((int(seconds) - self._keep_s) * 1e3)}-0"
        words = ("XADD", _STREAM, "MINID", "~", oldest, "*", "by", self._id, "body", body, "mac", self._mac(body))
        entry = await self._link.command(*words)
        return bytes(entry).decode()

    async def _done_by_all(self, entry: str) -> PurgeOutcome:
        """As far as they are known and were heard of. Gateways of another secret cannot do it."""
        deadline = time.monotonic() + _ACK_S
        while True:
            others = await self._others()
            strangers = sum(said.fingerprint != self._fingerprint for said in others)
            if strangers:
                logger.warning("%s", fields(event="deletion_not_understood", gateways=strangers, reason=_STRANGERS))
                return PurgeOutcome.UNREACHABLE
            if all(_place(said.last) >= _place(entry) for said in others):
                return PurgeOutcome.ERASED if others else PurgeOutcome.NONE
            if time.monotonic() > deadline:
                return PurgeOutcome.UNREACHABLE
            await asyncio.sleep(_ACK_POLL_S)

    async def _others(self) -> list[_Presence]:
        """The other gateways."""
        found = pairs_of(await self._link.command("HGETALL", _REPLICAS))
        others = [said for name, stored in found if name.decode() != self._id and (said := _presence(stored))]
        return [said for said in others if said.seen_at > time.time() - self._keep_s]

    async def _follow(self, apply: Apply) -> None:
        wait_s, is_cut_off = 0.0, False
        while True:
            try:
                if wait_s == 0:
                    await self._join()
                await self._read(apply, wait_s)
                wait_s = _BLOCK_S
                if is_cut_off:
                    is_cut_off = False
                    logger.info("%s", fields(event="journal_joined"))
            except TierError as error:
                if not is_cut_off:
                    is_cut_off = True
                    logger.warning("%s", fields(event="journal_cut_off", reason=error.reason))
                wait_s = 0.0
                await asyncio.sleep(_PAUSE_S)

    async def _join(self) -> None:
        """Tells what was not told, and learns the salts."""
        while self._untold:
            await self._add(self._untold[0])
            self._untold.popleft()
        salts = pairs_of(await self._link.waiting(0, "HGETALL", _SALTS))
        self._scopes.remember({name.decode(): salt.decode() for name, salt in salts})

    async def _read(self, apply: Apply, wait_s: float) -> None:
        """What is new, and then says so."""
        block = ("BLOCK", round(wait_s * 1e3)) if wait_s else ()
        found = await self._link.waiting(wait_s, "XREAD", "COUNT", _BATCH, *block, "STREAMS", _STREAM, self._last)
        for _, entries in found:
            for name, words in entries:
                deletion = self._of_others(words)
                if deletion is not None:
                    await apply(deletion)
                self._last = bytes(name).decode()
        said = msgspec.json.encode(_Presence(self._last, time.time(), self._fingerprint))
        await self._link.waiting(0, "HSET", _REPLICAS, self._id, said)

    def _of_others(self, words: object) -> Deletion | None:
        """None for one's own, and for what no gateway wrote."""
        found = {bytes(name): bytes(word) for name, word in pairs_of(words)}
        body = found.get(b"body", b"")
        if found.get(b"by") == self._id.encode() or not hmac.compare_digest(found.get(b"mac", b""), self._mac(body)):
            return None
        try:
            return msgspec.json.decode(body, type=Deletion)
        except msgspec.MsgspecError:  # of another version
            return None

    def _mac(self, body: bytes) -> bytes:
        return hmac.new(self._key, body, hashlib.sha256).hexdigest().encode()


def _presence(stored: bytes) -> _Presence | None:
    try:
        return msgspec.json.decode(stored, type=_Presence)
    except msgspec.MsgspecError:
        return None


def _place(entry: str) -> tuple[int, int]:
    """In the stream's order."""
    milliseconds, _, number = entry.partition("-")
    return (int(milliseconds), int(number or 0)) if milliseconds.isdigit() and number.isdigit() else (0, 0)
