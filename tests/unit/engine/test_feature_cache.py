from __future__ import annotations

from opsin.engine.local.feature_cache import FeatureCache, Features


def features(size_bytes: int = 10) -> Features:
    return Features(value=object(), size_bytes=size_bytes, num_tokens=1)


def filled(*keys: str, capacity_bytes: int = 30) -> FeatureCache:
    """Ten bytes per key, no leases."""
    cache = FeatureCache(capacity_bytes)
    for key in keys:
        cache.store("writer", "scope", key, features())
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
    stored = features()
    cache.store("writer", "scope", "a", stored)
    assert cache.take("reader", "a") is stored
    assert cache.take("reader", "b") is None
    assert (cache.hits, cache.misses) == (0, 0)


def test_the_least_recently_used_goes_first():
    cache = filled("a", "b", "c")
    found(cache, "a")
    cache.store("writer", "scope", "d", features())
    assert found(cache, "a", "b", "c", "d") == {"a", "c", "d"}
    assert cache.size_bytes == 30


def test_leased_features_are_not_evicted():
    cache = filled("a", "b", "c")
    cache.reserve("r", ("a", "b"))
    cache.store("writer", "scope", "d", features())
    assert found(cache, "a", "b", "c", "d") == {"a", "b", "d"}


def test_what_finds_no_room_lives_for_its_request_only():
    cache = filled("a", "b", "c")
    cache.reserve("r", ("a", "b", "c"))
    stored = features()
    cache.store("s", "scope", "d", stored)
    assert cache.take("s", "d") is stored
    assert found(cache, "d") == set()
    assert cache.size_bytes == 30
    cache.release("s")
    assert cache.take("s", "d") is None


def test_features_larger_than_the_cache_evict_nothing():
    cache = filled("a")
    cache.store("writer", "scope", "big", features(31))
    assert found(cache, "a", "big") == {"a"}


def test_two_leases_of_one_entry_end_apart():
    cache = filled("a", capacity_bytes=10)
    cache.reserve("r", ("a",))
    cache.reserve("s", ("a",))
    cache.release("r")
    cache.store("writer", "scope", "b", features())
    assert found(cache, "a", "b") == {"a"}
    cache.release("s")
    cache.release("unknown")
    cache.store("writer", "scope", "c", features())
    assert found(cache, "a", "c") == {"c"}


def test_reserving_twice_takes_one_lease():
    cache = filled("a", capacity_bytes=10)
    cache.reserve("r", ("a",))
    cache.reserve("r", ("a",))
    cache.release("r")
    cache.store("writer", "scope", "b", features())
    assert found(cache, "a", "b") == {"b"}


def test_purge_by_scope_and_by_key_stays_inside_the_scope():
    cache = FeatureCache(100)
    for scope, key in (("one", "a"), ("one", "b"), ("two", "c")):
        cache.store("writer", scope, key, features())
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
    cache.store("writer", "scope", "a", features(20))
    assert cache.size_bytes == 20
