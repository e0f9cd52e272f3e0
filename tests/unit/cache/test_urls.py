"""When a picture's server is asked again, and what is then used."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field

import pytest

from opsin.cache.keys import Scopes
from opsin.cache.memory import MemoryTier
from opsin.cache.store import Store
from opsin.cache.tombstones import Tombstones
from opsin.cache.urls import UrlMemory
from opsin.core.errors import Code, MediaError, MediaTooLarge, MediaUndecodable, OpsinError, Overloaded
from opsin.media.budget import Budget, ByteBudget
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
    pace: asyncio.Semaphore | None = None  # a place for each byte that may arrive
    arrived: list[int] = field(default_factory=list[int])
    fetching: int = 0
    looked: int = 0
    failure: OpsinError | None = None
    tombstones: Tombstones = field(default_factory=lambda: Tombstones(60))

    def __post_init__(self) -> None:
        metrics = Metrics(stages=frozenset(), cache=False, kv=False)
        store = Store([MemoryTier(1000, 1000, self.tombstones)], SCOPES, metrics, ttl_s=60, max_value_bytes=1000)
        self.urls = UrlMemory(store, SCOPES, self.tombstones, max_age_s=60, ttl_s=100, now=lambda: self.now)

    async def load(self, scope: str = "one", budget: int = 100, param: str = "here") -> bytes:
        """As a request does."""

        async def look(data: bytes) -> MediaBytes:
            self.looked += 1
            if data.startswith(b"bad"):
                raise MediaUndecodable("broken", code=Code.IMAGE_TRUNCATED, param=param)
            return MediaBytes(data, hashlib.sha256(data).hexdigest(), HEADER, param)

        media = await self.urls.of(scope).load(TARGET, self._fetch, look, ByteBudget(budget))
        self.told.append(media.url_outcome)
        return media.data

    async def _fetch(self, budget: Budget, etag: str | None) -> Fetched:
        self.asked.append(etag)
        self.fetching += 1
        try:
            if self.pace is not None:
                for byte in self.serves.data or b"":
                    await self.pace.acquire()
                    budget.take(1)
                    self.arrived.append(byte)
            else:
                budget.take(len(self.serves.data or b""))
        finally:
            self.fetching -= 1
        if self.failure is not None:
            raise self.failure
        serves = self.serves
        is_same = etag is not None and etag == serves.etag
        return Fetched(None if is_same else serves.data, serves.etag, serves.max_age_s, serves.may_be_kept)

    def arrive(self, num_bytes: int) -> None:
        """Lets so many bytes more through."""
        assert self.pace is not None
        for _ in range(num_bytes):
            self.pace.release()


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


async def test_a_url_and_its_digest_end_with_their_picture() -> None:
    bench, digest = Bench(pace=asyncio.Semaphore(0)), hashlib.sha256(b"first").hexdigest()
    loading = asyncio.create_task(bench.load())
    await turns()
    bench.tombstones.bury("one", SCOPES.record("one", digest))
    bench.urls.purge("one", SCOPES.record("one", digest))
    bench.arrive(5)
    await loading
    assert digest not in repr(vars(bench.urls)), "deleted while it was on its way"
    bench.pace = None
    await bench.load("two")
    bench.now = 99
    await bench.urls.expire()
    assert digest in repr(vars(bench.urls))
    bench.now = 100
    await bench.urls.expire()
    assert digest not in repr(vars(bench.urls))


async def turns(count: int = 5) -> None:
    """Lets the others go on."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_eight_who_want_it_at_once_have_it_fetched_and_judged_once() -> None:
    bench = Bench(Fetched(b"first"), pace=asyncio.Semaphore(0))
    loads = [asyncio.create_task(bench.load(param=str(number))) for number in range(8)]
    await turns()
    bench.arrive(5)
    assert await asyncio.gather(*loads) == [b"first"] * 8
    assert (bench.asked, bench.looked, bench.told) == ([None], 1, ["miss"] * 8)
    bench.arrive(5)
    await bench.load()
    assert bench.asked == [None, None], "its server does not let it be kept"


async def test_eight_who_ask_whether_it_changed_ask_once() -> None:
    bench = Bench()
    await bench.load()
    bench.now = 10
    assert await asyncio.gather(*(bench.load() for _ in range(8))) == [b"first"] * 8
    assert bench.asked == [None, '"1"']
    assert bench.told[1:] == ["hit-memory"] * 8


async def test_another_tenants_fetch_is_nobody_elses() -> None:
    bench = Bench(pace=asyncio.Semaphore(0))
    loads = [asyncio.create_task(bench.load(scope)) for scope in ("one", "two", "one")]
    await turns()
    assert bench.fetching == 2
    bench.arrive(10)
    await asyncio.gather(*loads)
    assert bench.asked == [None, None]


async def test_the_first_one_that_leaves_takes_it_from_nobody_and_the_last_one_ends_it() -> None:
    bench = Bench(pace=asyncio.Semaphore(0))
    first, second = (asyncio.create_task(bench.load()) for _ in range(2))
    await turns()
    first.cancel()
    await turns()
    assert bench.fetching == 1
    second.cancel()
    await turns()
    assert bench.fetching == 0
    third = asyncio.create_task(bench.load())
    await turns()
    bench.arrive(5)
    assert await third == b"first"
    assert len(bench.asked) == 2


async def test_each_is_told_of_its_own_picture_what_is_wrong_with_it() -> None:
    bench = Bench(Fetched(b"bad", max_age_s=10))
    failures = await asyncio.gather(*(bench.load(param=str(number)) for number in range(3)), return_exceptions=True)
    assert len({id(failure) for failure in failures}) == 3
    for failure in failures:
        assert isinstance(failure, MediaUndecodable)
        assert (failure.code, failure.param) == (Code.IMAGE_TRUNCATED, None), "the loader names it"
    assert len(bench.asked) == 1
    bench.serves = Fetched(b"first")
    assert await bench.load() == b"first", "a failure is not kept"


async def test_a_full_server_and_a_bad_origin_are_told_to_all_as_they_are() -> None:
    bench = Bench()
    for failure in (Overloaded("full", retry_after_s=1), MediaError("gone", code=Code.MEDIA_URL_UNREACHABLE)):
        bench.failure = failure
        outcomes = await asyncio.gather(*(bench.load() for _ in range(3)), return_exceptions=True)
        assert {(type(one), getattr(one, "code", None)) for one in outcomes} == {(type(failure), failure.code)}


async def test_who_cannot_pay_leaves_and_the_others_get_it() -> None:
    bench = Bench(pace=asyncio.Semaphore(0))
    poor, rich = asyncio.create_task(bench.load(budget=2)), asyncio.create_task(bench.load())
    await turns()
    bench.arrive(3)
    with pytest.raises(MediaTooLarge, match="more than 2 bytes"):
        await poor
    assert not rich.done()
    late = asyncio.create_task(bench.load(budget=2))
    with pytest.raises(MediaTooLarge):
        await late
    bench.arrive(2)
    assert await rich == b"first"
    assert len(bench.asked) == 1


async def test_nobody_left_who_can_pay_ends_the_fetch() -> None:
    bench = Bench(Fetched(b"x" * 1000), pace=asyncio.Semaphore(0))
    loads = [asyncio.create_task(bench.load(budget=budget)) for budget in (2, 3)]
    await turns()
    bench.arrive(900)
    failures = await asyncio.gather(*loads, return_exceptions=True)
    assert [type(failure) for failure in failures] == [MediaTooLarge] * 2
    await turns()
    assert bench.fetching == 0
    assert len(bench.arrived) < 1000
