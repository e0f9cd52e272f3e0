from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opsin.engine.local.prefix_cache import Identity, Prefix, PrefixCache, common_length


def prefix(identity: Identity, scope: str = "scope", pictures: tuple[str, ...] = (), size_bytes: int = 10) -> Prefix:
    return Prefix(scope=scope, identity=identity, origins=frozenset(pictures), value=object(), size_bytes=size_bytes)


def holding(*prefixes: Prefix, capacity_bytes: int = 30) -> PrefixCache:
    cache = PrefixCache(capacity_bytes, bytes_per_token=1)
    for one in prefixes:
        cache.store(one)
    return cache


def length(cache: PrefixCache, identity: Identity, scope: str = "scope", at_most: int = 100) -> int:
    match = cache.find(scope, identity, at_most)
    return match.length if match else 0


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_length_is_that_of_a_loop(start: list[int], one: list[int], other: list[int]):
    first, second = (*start, *one), (*start, *other)
    expected = 0
    while expected < min(len(first), len(second)) and first[expected] == second[expected]:
        expected += 1
    assert common_length(first, second) == expected


def test_the_longest_beginning_wins_to_the_token():
    cache = holding(prefix((1, 2, 3)), prefix((1, 2, 9, 9, 9)))
    assert length(cache, (1, 2, 3, 4)) == 3
    assert length(cache, (1, 2, 9, 9, 4)) == 4
    assert length(cache, (1, 2, 9, 9, 9), at_most=4) == 4
    assert length(cache, (7,)) == 0


def test_a_picture_is_another_one_when_its_units_are():
    cache = holding(prefix((1, ("x", 0), ("x", 1), 2)))
    assert length(cache, (1, ("x", 0), ("x", 1), 2)) == 4
    assert length(cache, (1, ("y", 0), ("y", 1), 2)) == 1


def test_scopes_are_apart():
    cache = holding(prefix((1, 2, 3), scope="one"))
    assert length(cache, (1, 2, 3), scope="two") == 0
    assert cache.purge("two", None) == 0
    assert cache.purge("one", None) == 1
    assert cache.size_bytes == 0


def test_a_longer_turn_replaces_the_shorter_one():
    cache = holding(prefix((1, 2)), prefix((1, 2, 3)))
    assert cache.size_bytes == 10


def test_what_is_held_needs_no_copy():
    cache = holding(prefix((1, 2, 3)))
    assert cache.holds("scope", (1, 2))
    assert cache.holds("scope", (1, 2, 3))
    assert not cache.holds("scope", (1, 2, 3, 4))
    assert not cache.holds("scope", (2,))
    assert not cache.holds("other", (1, 2))


def test_the_least_recently_used_goes_first():
    cache = holding(prefix((1,)), prefix((2,)), prefix((3,)))
    length(cache, (1,))
    cache.store(prefix((4,)))
    assert [length(cache, (token,)) for token in (1, 2, 3, 4)] == [1, 0, 1, 1]
    assert cache.size_bytes == 30


def test_what_is_larger_than_all_is_not_kept():
    cache = holding(prefix((1,)))
    cache.store(prefix((2,), size_bytes=31))
    assert length(cache, (1,)) == 1
    assert length(cache, (2,)) == 0
    assert not cache.has_room(31)


def test_purge_by_picture():
    cache = holding(prefix((1,), pictures=("a", "b")), prefix((2,), pictures=("c",)))
    assert cache.purge("scope", "b") == 1
    assert length(cache, (1,)) == 0
    assert length(cache, (2,)) == 1


def test_what_was_not_used_for_too_long_goes():
    now = [0.0]
    cache = PrefixCache(100, 1, ttl_s=10.0, now=lambda: now[0])
    cache.store(prefix((1,)))
    now[0] = 9.0
    assert length(cache, (1,)) == 1
    now[0] = 18.0
    assert length(cache, (1,)) == 1
    now[0] = 29.0
    assert length(cache, (1,)) == 0
    assert cache.size_bytes == 0
