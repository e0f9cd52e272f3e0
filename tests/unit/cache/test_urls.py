"""When a picture's server is asked again, and what is then used."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import pytest

from opsin.cache.keys import Scopes
from opsin.cache.memory import MemoryTier
from opsin.cache.store import Store
from opsin.cache.tombstones import Tombstones
from opsin.cache.urls import UrlMemory
from opsin.core.errors import MediaTooLarge
from opsin.media.budget import ByteBudget
from opsin.media.fetch import Fetched
from opsin.media.hosts import parse_host
from opsin.media.policy import Target
from opsin.media.types import ImageFormat, ImageHeader, MediaBytes
from opsin.telemetry.metrics import Metrics
from opsin.vision.size import Size

HEADER = ImageHeader(ImageFormat.PNG, Size(4, 4), 1, 1)
SCOPES = Scopes(b"secret")


@dataclass
class Bench:
    """A server whose picture may change, and a gateway that asks it."""

    serves: Fetched = field(default_factory=lambda: Fetched(b"first", '"1"', max_age_s=10))
    asked: list[str | None] = field(default_factory=list[str | None])
    told: list[str | None] = field(default_factory=list[str | None])
    now: float = 0.0
    tombstones: Tombstones = field(default_factory=lambda: Tombstones(60))

    def __post_init__(self) -> None:
        metrics = Metrics(stages=frozenset(), cache=False, kv=False)
        store = Store([MemoryTier(1000, 1000, self.tombstones)], SCOPES, metrics, ttl_s=60, max_value_bytes=1000)
        self.urls = UrlMemory(store, SCOPES, max_age_s=60, now=lambda: self.now)

    async def load(self, scope: str = "one", budget: int = 100) -> bytes:
        """As a request does."""
        visit = self.urls.visit(scope)
        data = await visit.fetch(TARGET, self._fetch, ByteBudget(budget))
        loaded = (MediaBytes(data, hashlib.sha256(data).hexdigest(), HEADER, "here"),)
        await visit.keep(loaded)
        self.told += [media.url_outcome for media in visit.told(loaded)]
        return data

    async def _fetch(self, etag: str | None) -> Fetched:
        self.asked.append(etag)
        serves = self.serves
        is_same = etag is not None and etag == serves.etag
        return Fetched(None if is_same else serves.data, serves.etag, serves.max_age_s, serves.may_be_kept)


TARGET = Target("https", parse_host("img.example"), 443, "/a.png")


async def test_its_server_is_asked_when_it_said_so() -> None:
    bench = Bench()
    assert [await bench.load() for _ in range(2)] == [b"first"] * 2
    assert bench.asked == [None]
    bench.now = 10
    assert await bench.load() == b"first"
    assert bench.asked == [None, '"1"']
    assert await bench.load() == b"first", "fresh again"
    bench.now, bench.serves = 20, Fetched(b"second", '"2"', max_age_s=10**6)
    assert await bench.load() == b"second"
    bench.now = 79.9
    await bench.load()
    bench.now = 80
    await bench.load()
    assert bench.asked == [None, '"1"', '"1"', '"2"'], "never longer than the operator allows"
    hit = "hit-memory"
    assert bench.told == ["miss", hit, hit, hit, "miss", hit, hit], "one that has not changed is a hit"


async def test_a_picture_that_came_otherwise_is_no_look() -> None:
    (media,) = Bench().urls.visit("one").told((MediaBytes(b"x", "sha", HEADER, "here"),))
    assert media.url_outcome is None


@pytest.mark.parametrize(
    "fetched", [Fetched(b"x"), Fetched(b"x", '"1"', 10, may_be_kept=False), Fetched(b"x", '"1"', max_age_s=0)]
)
async def test_what_may_not_be_used_unasked_is_not(fetched: Fetched) -> None:
    bench = Bench(fetched)
    assert [await bench.load() for _ in range(2)] == [b"x"] * 2
    assert len(bench.asked) == 2


async def test_it_is_nobody_elses_and_counts_like_a_fetch() -> None:
    bench = Bench()
    await bench.load()
    await bench.load("two")
    assert bench.asked == [None, None]
    with pytest.raises(MediaTooLarge):
        await bench.load(budget=4)


async def test_a_purge_forgets_it() -> None:
    bench = Bench()
    await bench.load()
    bench.urls.purge("one", SCOPES.record("one", hashlib.sha256(b"another").hexdigest()))
    await bench.load()
    assert bench.asked == [None]
    bench.urls.purge("one", SCOPES.record("one", hashlib.sha256(b"first").hexdigest()))
    await bench.load()
    assert bench.asked == [None, None]
