"""Rendezvous hashing with bounded loads: who moves, how much one may have, and that all processes agree."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from opsin.engine.replicas.routing import Load, choose, ranked

NAMES = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=8, unique=True)
KEYS = st.binary(max_size=40)
LOADS = st.dictionaries(
    st.text(min_size=1, max_size=12),
    st.builds(Load, st.integers(0, 1000), st.integers(0, 10**6)),
    min_size=1,
    max_size=8,
)
REQUESTS = st.builds(Load, st.just(1), st.integers(0, 10**5))
BOUNDS = st.floats(1, 4)


@given(NAMES, KEYS)
def test_a_ranking_has_every_name_once_in_whatever_order_they_come(names: list[str], key: bytes) -> None:
    assert sorted(ranked(key, names)) == sorted(names)
    assert ranked(key, names) == ranked(key, reversed(names))


@given(NAMES, KEYS)
def test_whoever_leaves_takes_only_its_own_place_along(names: list[str], key: bytes) -> None:
    order = ranked(key, names)
    for gone in names:
        assert ranked(key, [name for name in names if name != gone]) == [name for name in order if name != gone]


@given(NAMES, st.lists(KEYS, max_size=20), st.text(min_size=1))
def test_whoever_joins_gets_keys_and_moves_no_other(names: list[str], keys: list[bytes], new: str) -> None:
    for key in keys:
        before, after = ranked(key, names)[0], ranked(key, {*names, new})[0]
        assert after in (before, new)


def test_keys_are_shared_out_evenly() -> None:
    counts = Counter(ranked(str(number).encode(), "abcd")[0] for number in range(4000))
    assert all(900 < count < 1100 for count in counts.values())


def test_a_ranking_is_the_same_in_every_process_and_version() -> None:
    """Several gateways before the same replicas have to agree, also while they are updated one by one."""
    assert ranked(b"key", "abcd") == ["b", "d", "a", "c"]


@given(LOADS, REQUESTS, KEYS | st.none(), BOUNDS)
def test_one_is_always_chosen_and_was_below_the_bound(
    loads: dict[str, Load], request: Load, key: bytes | None, bound: float
) -> None:
    chosen = choose(loads, request, key, bound)
    total = sum(load.as_for(request) for load in loads.values()) + request.as_for(request)
    assert loads[chosen].as_for(request) < bound * total / len(loads)


@given(LOADS, REQUESTS, KEYS, BOUNDS)
def test_only_the_full_are_passed_over(loads: dict[str, Load], request: Load, key: bytes, bound: float) -> None:
    chosen = choose(loads, request, key, bound)
    total = sum(load.as_for(request) for load in loads.values()) + request.as_for(request)
    order = ranked(key, loads)
    passed = order[: order.index(chosen)]
    assert all(loads[name].as_for(request) >= bound * total / len(loads) for name in passed)


@given(st.lists(st.tuples(KEYS, st.integers(1, 500)), min_size=1, max_size=60), st.integers(1, 6), BOUNDS)
def test_no_replica_ends_far_above_the_mean(requests: list[tuple[bytes, int]], count: int, bound: float) -> None:
    """Whatever the keys, all of them one and the same included."""
    loads = {str(number): Load() for number in range(count)}
    for key, tokens in requests:
        request = Load(1, tokens)
        loads[choose(loads, request, key, bound)] += request
    total, largest = sum(tokens for _, tokens in requests), max(tokens for _, tokens in requests)
    assert all(load.visual_tokens < bound * total / count + largest for load in loads.values())


def test_visual_tokens_decide_for_pictures_and_requests_for_texts() -> None:
    loads = {"many texts": Load(9, 0), "one large picture": Load(1, 4000)}
    assert choose(loads, Load(1, 100), None, 1.25) == "many texts"
    assert choose(loads, Load(1, 0), None, 1.25) == "one large picture"


def test_a_load_is_given_back() -> None:
    assert Load(3, 70) + Load(1, 64) - Load(1, 64) == Load(3, 70)
