from __future__ import annotations

from collections.abc import Iterable

import pytest

from opsin.engine.local.feature_cache import FeatureCache, Features, PictureUnits
from opsin.engine.local.hit_watch import SAMPLE, SAMPLE_WINDOW, WINDOW


def features(size_bytes: int = 10) -> Features:
    return Features(value=object(), size_bytes=size_bytes, num_tokens=1)


def whole(key: str) -> PictureUnits:
    """A picture that is one unit of the same name."""
    return PictureUnits(key, (key,), key)


def put(cache: FeatureCache, request_id: str, key: str, size_bytes: int = 10, scope: str = "scope") -> Features:
    stored = features(size_bytes)
    cache.store(request_id, scope, key, stored, [whole(key)])
    return stored


def filled(*keys: str, capacity_bytes: int = 30) -> FeatureCache:
    """Ten bytes per key, no leases."""
    cache = FeatureCache(capacity_bytes)
    for key in keys:
        put(cache, "writer", key)
        cache.release("writer")
    return cache


def found(cache: FeatureCache, *keys: str) -> set[str]:
    leased = cache.reserve("probe", keys)
    cache.release("probe")
    return set(leased)


def test_reserve_leases_what_exists_and_counts_the_lookup():
    cache = filled("a", "b")
    assert cache.reserve("r", ("a", "b", "c", "a")) == {"a", "b"}
    assert (cache.hits, cache.misses) == (2, 1)


def test_take_gives_the_stored_object_and_counts_nothing():
    cache = FeatureCache(100)
    stored = put(cache, "writer", "a")
    assert cache.take("reader", "a") is stored
    assert cache.take("reader", "b") is None
    assert (cache.hits, cache.misses) == (0, 0)


def test_the_least_recently_used_goes_first():
    cache = filled("a", "b", "c")
    found(cache, "a")
    put(cache, "writer", "d")
    assert found(cache, "a", "b", "c", "d") == {"a", "c", "d"}
    assert cache.size_bytes == 30


def test_leased_features_are_not_evicted():
    cache = filled("a", "b", "c")
    cache.reserve("r", ("a", "b"))
    put(cache, "writer", "d")
    assert found(cache, "a", "b", "c", "d") == {"a", "b", "d"}


def test_what_finds_no_room_lives_for_its_request_only():
    cache = filled("a", "b", "c")
    cache.reserve("r", ("a", "b", "c"))
    stored = put(cache, "s", "d")
    assert cache.take("s", "d") is stored
    assert found(cache, "d") == set()
    assert cache.size_bytes == 30
    cache.release("s")
    assert cache.take("s", "d") is None


def test_features_larger_than_the_cache_evict_nothing():
    cache = filled("a")
    put(cache, "writer", "big", 31)
    assert found(cache, "a", "big") == {"a"}


def test_two_leases_of_one_entry_end_apart():
    cache = filled("a", capacity_bytes=10)
    cache.reserve("r", ("a",))
    cache.reserve("s", ("a",))
    cache.release("r")
    put(cache, "writer", "b")
    assert found(cache, "a", "b") == {"a"}
    cache.release("s")
    cache.release("unknown")
    put(cache, "writer", "c")
    assert found(cache, "a", "c") == {"c"}


def test_reserving_twice_takes_one_lease():
    cache = filled("a", capacity_bytes=10)
    cache.reserve("r", ("a",))
    cache.reserve("r", ("a",))
    cache.release("r")
    put(cache, "writer", "b")
    assert found(cache, "a", "b") == {"b"}


def test_purge_by_scope_and_by_key_stays_inside_the_scope():
    cache = FeatureCache(100)
    for scope, key in (("one", "a"), ("one", "b"), ("two", "c")):
        put(cache, "writer", key, scope=scope)
    assert cache.purge("two", "a") == 0
    assert cache.purge("one", "a") == 1
    assert found(cache, "a", "b", "c") == {"b", "c"}
    assert cache.purge("one", None) == 1
    assert cache.size_bytes == 10


def test_a_purged_entry_serves_its_lease_and_nobody_else():
    cache = filled("a")
    cache.reserve("r", ("a",))
    cache.purge("scope", "a")
    assert found(cache, "a") == set()
    assert cache.take("r", "a") is not None
    cache.release("r")
    assert cache.take("r", "a") is None


def test_storing_a_key_again_replaces_it():
    cache = filled("a")
    put(cache, "writer", "a", 20)
    assert cache.size_bytes == 20


def test_what_was_used_twice_outlives_what_was_not():
    cache = filled("a", capacity_bytes=50)
    found(cache, "a")
    for key in "bcdefgh":
        put(cache, "writer", key)
        cache.release("writer")
    assert found(cache, "a") == {"a"}


def test_the_proven_step_back_when_they_are_too_many():
    cache = filled("a", "b", "c")
    found(cache, "a")
    found(cache, "b")
    found(cache, "c")
    put(cache, "writer", "d")
    assert found(cache, "a", "b", "c", "d") == {"b", "c", "d"}


def tiled(cache: FeatureCache, request_id: str, key: str, units: str) -> None:
    """Stores each unit unless it is there."""
    holder = PictureUnits(key, tuple(units), key)
    for unit in units:
        if cache.take(request_id, unit, holder) is None:
            cache.store(request_id, "scope", unit, features(), [holder])
    cache.release(request_id)


def test_a_picture_is_found_when_all_of_its_units_are():
    cache = FeatureCache(100)
    holder = PictureUnits("a", ("x", "y", "x"))
    cache.store("r", "scope", "x", features(), [holder])
    assert found(cache, "a") == set()
    cache.store("r", "scope", "y", features(), [holder])
    assert cache.reserve("s", ("a",)) == {"a"}
    assert cache.leased("s", "a") == holder
    assert cache.leased("t", "a") is None


def test_an_evicted_unit_makes_its_pictures_unknown_and_leaves_the_others():
    cache = FeatureCache(30)
    tiled(cache, "r", "a", "xy")
    put(cache, "s", "b", 20)
    cache.release("s")
    assert found(cache, "a", "b") == {"b"}
    assert cache.take("t", "y") is not None
    assert cache.purge("scope", "a") == 1
    assert cache.size_bytes == 20


def test_purging_a_picture_leaves_units_that_another_one_holds():
    cache = FeatureCache(100)
    tiled(cache, "r", "a", "xy")
    tiled(cache, "r", "b", "yz")
    assert cache.purge("scope", "a") == 1
    assert cache.size_bytes == 20
    assert found(cache, "a", "b") == {"b"}
    assert cache.purge("scope", "b") == 1
    assert cache.size_bytes == 0


def test_half_a_picture_can_be_purged():
    cache = FeatureCache(100)
    cache.store("r", "scope", "x", features(), [PictureUnits("a", ("x", "y"), "of a")])
    assert cache.purge("scope", "of a") == 1
    assert cache.size_bytes == 0


def test_what_is_too_old_is_not_found_and_goes():
    now = [0.0]
    cache = FeatureCache(100, ttl_s=10.0, now=lambda: now[0])
    put(cache, "r", "a")
    now[0] = 9.0
    put(cache, "r", "b")
    cache.release("r")
    now[0] = 11.0
    assert found(cache, "a", "b") == {"b"}
    now[0] = 20.0
    cache.expire()
    assert cache.size_bytes == 0


def lookups(cache: FeatureCache, names: Iterable[str]) -> int:
    """One request with one unit for each name, encoded when it is not there; returns how many were."""
    found_before = 0
    for name in names:
        if cache.take(name, name, whole(name)) is None:
            put(cache, name, name)
        else:
            found_before += 1
        cache.release(name)
    return found_before


def test_a_cache_that_hardly_helps_turns_itself_down_and_comes_back(caplog: pytest.LogCaptureFixture):
    cache = FeatureCache(10**9)
    lookups(cache, (f"once-{number}" for number in range(WINDOW - 1)))
    assert not cache.is_turned_down
    leased = put(cache, "reader", "leased")
    lookups(cache, ["last"])
    assert cache.is_turned_down
    assert "turns itself down" in caplog.text
    assert cache.size_bytes < 10 * WINDOW / 4, "what was kept for nothing is given back"
    assert cache.take("reader", "leased") is leased
    lookups(cache, (f"more-{number}" for number in range(WINDOW)))
    assert cache.size_bytes < 10 * WINDOW / 4, "and little more is kept"
    assert cache.is_turned_down
    lookups(cache, (f"again-{number % 500}" for number in range(4 * SAMPLE * SAMPLE_WINDOW)))
    assert not cache.is_turned_down
    assert "turns itself up" in caplog.text
    names = [f"full-{number}" for number in range(100)]
    lookups(cache, names)
    assert lookups(cache, names) == len(names)


def test_a_cache_that_helps_once_in_fifty_stays_up():
    cache = FeatureCache(10**9)
    lookups(cache, (f"{number}" if number % 50 else "same" for number in range(3 * WINDOW)))
    assert not cache.is_turned_down


def test_tiles_that_come_again_count_though_no_picture_does():
    """A stream of screenshots."""
    cache = FeatureCache(10**9)
    for number in range(WINDOW):
        name = f"shot-{number}"
        picture = PictureUnits(name, ("the same", name))
        assert not cache.reserve(name, [name])
        for unit in picture.unit_keys:
            if cache.take(name, unit, picture) is None:
                cache.store(name, "scope", unit, features(), [picture])
        cache.release(name)
    assert not cache.is_turned_down
