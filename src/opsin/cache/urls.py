"""What stood at a URL a moment ago, for as long as its server says so. In memory only, by scope.

A picture is used without asking for ``max-age`` seconds at most, and for less than the operator's limit; after that its
server is asked whether it changed, by its ETag. The URL decides only where to look: the key of everything made of the
picture is its digest. Several requests of a scope that want a URL at once fetch it once.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from opsin.cache.flight import Flights
from opsin.cache.keys import Scopes
from opsin.cache.store import MISS, Found, Item, Store
from opsin.cache.tier import Kind, Value
from opsin.cache.tombstones import Tombstones
from opsin.core.errors import MediaError
from opsin.media.budget import Budget, SharedBudget
from opsin.media.fetch import Fetched
from opsin.media.loader import Fetch, Look
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
    ends_at: float


@dataclass(frozen=True, slots=True)
class _Kept:
    """What stood there; ``is_fresh``: it need not be asked for again."""

    found: Found
    etag: str | None
    is_fresh: bool

    async def looked_at(self, look: Look) -> MediaBytes:
        return replace(await look(self.found.value.data), url_outcome=self.found.outcome)


class UrlMemory:
    """URLs of scopes. ``max_age_s`` is the operator's limit of what is used without asking, ``ttl_s`` of what is
    remembered at all. Lives in one event loop."""

    def __init__(
        self,
        store: Store,
        scopes: Scopes,
        tombstones: Tombstones,
        *,
        max_age_s: float,
        ttl_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._scopes = scopes
        self._tombstones = tombstones
        self._max_age_s = max_age_s
        self._ttl_s = ttl_s
        self._now = now
        self._known: dict[str, OrderedDict[str, _Known]] = {}
        self._arriving: dict[tuple[str, str], SharedBudget] = {}  # by scope and URL: what is being loaded
        self._flights: Flights[MediaBytes] = Flights()

    def of(self, scope: str) -> ScopedUrls:
        """For the loader."""
        return ScopedUrls(self, scope)

    def purge(self, scope: str, record: str | None) -> None:
        """Forgets where a picture came from, or all of a scope's."""
        known = self._known.pop(scope, OrderedDict())
        if record is not None:
            kept = OrderedDict((url, one) for url, one in known.items() if one.record != record)
            if kept:
                self._known[scope] = kept

    async def expire(self) -> None:
        """Forgets what was not seen for too long."""
        now = self._now()
        for scope, known in list(self._known.items()):
            for url in [url for url, one in known.items() if one.ends_at <= now]:
                del known[url]
            if not known:
                del self._known[scope]

    async def load(self, scope: str, target: Target, fetch: Fetch, look: Look, budget: Budget) -> MediaBytes:
        """The picture at a URL, as it is now or was a moment ago; ``url_outcome`` says which.

        Requests of one scope that want it at once have it fetched, judged and kept once. Raises as Fetches.
        """
        place = scope, target.url
        arriving = self._arriving.setdefault(place, SharedBudget())
        with arriving.paid_from(budget) as payer:
            try:
                work = partial(self._loaded, place, arriving, fetch, look)
                media = await self._flights.run(arriving, work, leave=payer.refused)
            except MediaError as error:  # one object for all who waited, and each says of it which picture it is
                raise type(error)(error.message, code=error.code) from error.__cause__
            finally:
                if arriving.is_last(payer):
                    self._landed(place, arriving)
            payer.settle(len(media.data))
        return media

    async def _loaded(self, place: tuple[str, str], arriving: SharedBudget, fetch: Fetch, look: Look) -> MediaBytes:
        try:
            found = await self._find(*place)
            if found is not None and found.is_fresh:
                return await found.looked_at(look)
            fetched = await fetch(arriving, found.etag if found else None)
            if found is not None and fetched.data is None:
                self._renew(*place, fetched)
                return await found.looked_at(look)
            assert fetched.data is not None, "asked without an ETag, or changed"
            media = await look(fetched.data)
            await self._keep(*place, media, fetched)
            return replace(media, url_outcome=MISS)
        finally:
            self._landed(place, arriving)

    def _landed(self, place: tuple[str, str], arriving: SharedBudget) -> None:
        """Who comes from now on looks anew."""
        if self._arriving.get(place) is arriving:
            del self._arriving[place]

    async def _find(self, scope: str, url: str) -> _Kept | None:
        known = self._known.get(scope, OrderedDict()).get(url)
        if known is None:
            return None
        found = await self._store.get(Item(scope, known.sha256, Kind.MEDIA))
        return None if found is None else _Kept(found, known.etag, known.fresh_until > self._now())

    def _renew(self, scope: str, url: str, fetched: Fetched) -> None:
        """Its server says that it did not change."""
        known = self._known.get(scope, OrderedDict()).get(url)
        if known is not None:
            self._note(scope, url, known.sha256, fetched)

    async def _keep(self, scope: str, url: str, media: MediaBytes, fetched: Fetched) -> None:
        """A picture that was fetched, and turned out to be one."""
        if fetched.may_be_kept and (fetched.etag is not None or fetched.max_age_s > 0):
            self._note(scope, url, media.sha256, fetched)
            await self._store.put(Item(scope, media.sha256, Kind.MEDIA), Value(b"", media.data))

    def _note(self, scope: str, url: str, sha256: str, fetched: Fetched) -> None:
        record, now = self._scopes.record(scope, sha256), self._now()
        if self._tombstones.covers(scope, record):  # it was on its way while it was deleted
            return
        known = self._known.setdefault(scope, OrderedDict())
        fresh_until = now + min(fetched.max_age_s, self._max_age_s)
        known[url] = _Known(sha256, record, fetched.etag, fresh_until, now + self._ttl_s)
        known.move_to_end(url)
        if len(known) > _MAX_URLS:
            known.popitem(last=False)


@dataclass(frozen=True, slots=True)
class ScopedUrls:
    """The URLs of one scope, see :class:`opsin.media.loader.Fetches`."""

    urls: UrlMemory
    scope: str

    async def load(self, target: Target, fetch: Fetch, look: Look, budget: Budget) -> MediaBytes:
        """See Fetches."""
        return await self.urls.load(self.scope, target, fetch, look, budget)
