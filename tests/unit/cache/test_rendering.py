"""What is remembered of the sandbox's work, for whom, and what a tier that fails does to it."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace

import pytest

from opsin.cache.keys import Scopes
from opsin.cache.memory import MemoryTier
from opsin.cache.rendering import CachedRenderer, Made
from opsin.cache.store import MISS, Store
from opsin.cache.tier import Address, Tier, TierError, Value
from opsin.cache.tombstones import Tombstones
from opsin.core.erasure import PurgeOutcome
from opsin.core.errors import MediaUndecodable
from opsin.media.encoding import JPEG_95, Encoding
from opsin.media.types import ImageFormat, ImageHeader, MediaBytes, RenderedPicture
from opsin.telemetry.metrics import Metrics
from opsin.vision.recipe import Filter, RenderRecipe, resized
from opsin.vision.size import Size

HEADER = ImageHeader(ImageFormat.PNG, Size(4, 4), 1, 1)
RECIPE = resized(Size(2, 2), Filter.LANCZOS)
SCOPES = Scopes(b"secret")


def media(data: bytes = b"a picture", param: str = "here") -> MediaBytes:
    return MediaBytes(data, hashlib.sha256(data).hexdigest(), HEADER, param)


@dataclass
class Sandbox:
    """Counts its work; pictures that say so do not decode."""

    done: list[str] = field(default_factory=list[str])

    async def render(self, media: MediaBytes, recipe: RenderRecipe) -> RenderedPicture:
        await self._work("render", media)
        return RenderedPicture(media.data[:1] * 12, 1, recipe.tile)

    async def verify(self, media: MediaBytes) -> None:
        await self._work("verify", media)

    async def scale(self, media: MediaBytes, size: Size, encoding: Encoding) -> MediaBytes:
        await self._work("scale", media)
        header = ImageHeader(encoding.format, size, 1, 1)
        return replace(media, data=b"small", sha256="of the small one", header=header, base64=None)

    async def _work(self, what: str, media: MediaBytes) -> None:
        self.done.append(what)
        await asyncio.sleep(0.01)
        if media.data == b"broken":
            raise MediaUndecodable("it does not decode", param=media.param)


class FailingTier:
    """Nothing works."""

    name = "failing"
    is_shared = True

    async def get(self, at: Address) -> Value | None:
        raise TierError("gone")

    async def put(self, at: Address, value: Value, ttl_s: float) -> bool:
        raise TierError("gone")

    async def fields(self, scope: str, record: str) -> dict[str, Value]:
        raise TierError("gone")

    async def drop(self, at: Address) -> None:
        raise TierError("gone")

    async def purge(self, scope: str, record: str | None) -> PurgeOutcome:
        raise TierError("gone")

    def alone(self, scope: str) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def expire(self) -> None:
        raise TierError("gone")

    async def lift(self, scope: str, record: str) -> None:
        raise TierError("gone")

    async def close(self) -> None:
        pass


@dataclass
class Bench:
    tombstones: Tombstones = field(default_factory=lambda: Tombstones(60))
    sandbox: Sandbox = field(default_factory=Sandbox)
    metrics: Metrics = field(default_factory=lambda: Metrics(stages=frozenset(), cache=False, kv=False))

    def store(self, *tiers: Tier) -> Store:
        return Store(
            tiers or (MemoryTier(10_000, 10_000, self.tombstones),),
            SCOPES,
            self.metrics,
            ttl_s=60,
            max_value_bytes=1000,
        )

    def renderer(self, store: Store | None = None, *identity: str) -> CachedRenderer:
        return CachedRenderer(self.sandbox, store or self.store(), identity)


async def test_the_same_is_made_once_and_for_its_scope_alone() -> None:
    bench = Bench()
    renderer = bench.renderer()
    first = await renderer.render("one", media(), RECIPE)
    assert first.outcome == MISS
    assert await renderer.render("one", media(), RECIPE) == Made(first.result, "hit-memory")
    assert bench.sandbox.done == ["render"]
    await renderer.render("two", media(), RECIPE)
    await renderer.render("one", media(b"another"), RECIPE)
    await renderer.render("one", media(), resized(Size(2, 2), Filter.BICUBIC))
    await renderer.render("one", replace(media(), header=replace(HEADER, orientation=6)), RECIPE)
    assert len(bench.sandbox.done) == 5


async def test_another_version_makes_it_again() -> None:
    bench = Bench()
    store = bench.store()
    for identity in ("1.0", "1.1", "1.0"):
        await bench.renderer(store, identity).render("one", media(), RECIPE)
    assert len(bench.sandbox.done) == 2


async def test_eight_at_once_take_one_worker() -> None:
    bench = Bench()
    renderer = bench.renderer()
    made = await asyncio.gather(*(renderer.render("one", media(), RECIPE) for _ in range(8)))
    assert bench.sandbox.done == ["render"]
    assert set(made) == {made[0]}


async def test_each_of_those_who_wait_is_told_of_its_own_picture_and_a_failure_is_not_kept() -> None:
    bench = Bench()
    renderer = bench.renderer()
    outcomes = await asyncio.gather(
        *(renderer.verify("one", media(b"broken", param=str(number))) for number in range(3)), return_exceptions=True
    )
    assert [getattr(outcome, "param", None) for outcome in outcomes] == ["0", "1", "2"]
    with pytest.raises(MediaUndecodable):
        await renderer.verify("one", media(b"broken"))
    assert bench.sandbox.done == ["verify", "verify"]


async def test_a_scaled_picture_keeps_the_place_of_whoever_asks() -> None:
    bench = Bench()
    renderer = bench.renderer()
    first = await renderer.scale("one", media(param="a"), Size(2, 2), JPEG_95)
    again = await renderer.scale("one", media(param="b"), Size(2, 2), JPEG_95)
    assert again == Made(replace(first.result, param="b"), "hit-memory")
    assert bench.sandbox.done == ["scale"]


async def test_a_picture_that_decoded_need_not_do_so_again() -> None:
    bench = Bench()
    renderer = bench.renderer()
    assert [(await renderer.verify("one", media())).outcome for _ in range(2)] == [MISS, "hit-memory"]
    assert bench.sandbox.done == ["verify"]


async def test_a_tier_that_fails_is_a_miss_with_a_metric() -> None:
    bench = Bench()
    store = bench.store(FailingTier())
    renderer = bench.renderer(store)
    for _ in range(2):
        assert (made := await renderer.render("one", media(), RECIPE)).result.pixels == b"a" * 12
        assert made.outcome == MISS
    await store.written()
    assert bench.sandbox.done == ["render", "render"]
    shown = bench.metrics.render().decode()
    assert 'opsin_cache_lookups_total{kind="render",outcome="error",tier="failing"} 2.0' in shown
    assert 'opsin_cache_write_failures_total{tier="failing"} 2.0' in shown
    assert await store.purge("one", "record") == {"failing": PurgeOutcome.UNREACHABLE}


async def test_a_nearer_tier_takes_over_what_a_farther_one_had() -> None:
    bench = Bench()
    near, far = (MemoryTier(10_000, 10_000, bench.tombstones) for _ in range(2))
    await bench.renderer(bench.store(far)).render("one", media(), RECIPE)
    renderer = bench.renderer(bench.store(near, far))
    await renderer.render("one", media(), RECIPE)
    assert near.size_bytes == far.size_bytes > 0
    assert bench.sandbox.done == ["render"]


async def test_work_that_began_before_a_deletion_leaves_nothing() -> None:
    bench = Bench()
    renderer = bench.renderer()
    working = asyncio.create_task(renderer.render("one", media(), RECIPE))
    await asyncio.sleep(0)
    bench.tombstones.bury("one", SCOPES.record("one", media().sha256))
    assert (await working).result.pixels == b"a" * 12
    await renderer.render("one", media(), RECIPE)
    assert bench.sandbox.done == ["render", "render"]
