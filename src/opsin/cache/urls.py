"""What stood at a URL a moment ago, for as long as its server says so. In memory only, by scope.

A picture is used without asking for ``max-age`` seconds at most, and for less than the operator's limit; after that its
server is asked whether it changed, by its ETag. The URL decides only where to look: the key of everything made of the
picture is its digest.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from opsin.cache.keys import Scopes
from opsin.cache.store import MISS, Found, Item, Store
from opsin.cache.tier import Kind, Value
from opsin.media.budget import ByteBudget
from opsin.media.fetch import Fetched
from opsin.media.loader import Fetch
from opsin.media.policy import Target
from opsin.media.types import MediaBytes

_MAX_URLS = 1024
"""Of one scope."""


@dataclass(frozen=True, slots=True)
class _Known:
    sha256: str
    record: str
    etag: str | None
    fresh_until: float


class UrlMemory:
    """URLs of scopes. ``max_age_s`` is the operator's limit. Lives in one event loop."""

    def __init__(
        self, store: Store, scopes: Scopes, max_age_s: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._scopes = scopes
        self._max_age_s = max_age_s
        self._now = now
        self._known: dict[str, OrderedDict[str, _Known]] = {}

    def visit(self, scope: str) -> Visit:
        """For one request."""
        return Visit(self, scope)

    def purge(self, scope: str, record: str | None) -> None:
        """Forgets where a picture came from, or all of a scope's."""
        known = self._known.pop(scope, OrderedDict())
        if record is not None:
            kept = OrderedDict((url, one) for url, one in known.items() if one.record != record)
            if kept:
                self._known[scope] = kept

    async def find(self, scope: str, url: str) -> tuple[Found, str | None, bool] | None:
        """The picture, its ETag, and whether it need not be asked for again."""
        known = self._known.get(scope, OrderedDict()).get(url)
        if known is None:
            return None
        found = await self._store.get(Item(scope, known.sha256, Kind.MEDIA))
        return None if found is None else (found, known.etag, known.fresh_until > self._now())

    def renew(self, scope: str, url: str, fetched: Fetched) -> None:
        """Its server says that it did not change."""
        known = self._known.get(scope, OrderedDict()).get(url)
        if known is not None:
            self._note(scope, url, known.sha256, fetched)

    async def keep(self, scope: str, url: str, media: MediaBytes, fetched: Fetched) -> None:
        """A picture that was fetched, and turned out to be one."""
        if fetched.may_be_kept and (fetched.etag is not None or fetched.max_age_s > 0):
            self._note(scope, url, media.sha256, fetched)
            await self._store.put(Item(scope, media.sha256, Kind.MEDIA), Value(b"", media.data))

    def _note(self, scope: str, url: str, sha256: str, fetched: Fetched) -> None:
        known = self._known.setdefault(scope, OrderedDict())
        fresh_until = self._now() + min(fetched.max_age_s, self._max_age_s)
        known[url] = _Known(sha256, self._scopes.record(scope, sha256), fetched.etag, fresh_until)
        known.move_to_end(url)
        if len(known) > _MAX_URLS:
            known.popitem(last=False)


class Visit:
    """The URLs of one request, see :class:`opsin.media.loader.Fetches`."""

    def __init__(self, urls: UrlMemory, scope: str) -> None:
        self._urls = urls
        self._scope = scope
        self._fetched: dict[int, tuple[str, Fetched]] = {}  # by the id of the bytes, which the request holds
        self._outcomes: dict[int, str] = {}

    async def fetch(self, target: Target, fetch: Fetch, budget: ByteBudget) -> bytes:
        """The bytes at a URL, as they are now or were a moment ago."""
        found = await self._urls.find(self._scope, target.url)
        if found is None:
            return self._new(target, await fetch(None))
        kept, etag, is_fresh = found
        if not is_fresh:
            fetched = await fetch(etag)
            if fetched.data is not None:
                return self._new(target, fetched)
            self._urls.renew(self._scope, target.url, fetched)
        data = kept.value.data
        budget.take(len(data))
        self._outcomes[id(data)] = kept.outcome
        return data

    async def keep(self, loaded: tuple[MediaBytes, ...]) -> None:
        """Those of the loaded pictures that were fetched."""
        for media in loaded:
            found = self._fetched.pop(id(media.data), None)
            if found is not None:
                await self._urls.keep(self._scope, found[0], media, found[1])

    def told(self, loaded: tuple[MediaBytes, ...]) -> tuple[MediaBytes, ...]:
        """The loaded pictures, those by URL with what was found of them."""
        outcomes = self._outcomes
        return tuple(
            replace(media, url_outcome=outcomes[id(media.data)]) if id(media.data) in outcomes else media
            for media in loaded
        )

    def _new(self, target: Target, fetched: Fetched) -> bytes:
        assert fetched.data is not None, "asked without an ETag, or changed"
        self._fetched[id(fetched.data)] = (target.url, fetched)
        self._outcomes[id(fetched.data)] = MISS
        return fetched.data
