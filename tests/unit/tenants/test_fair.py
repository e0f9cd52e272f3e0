"""The shares of those that wait, whatever they wait with. By property, because fairness is one."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from opsin.tenants.fair import FairQueue, Lane, Waiting

COSTS = st.integers(1, 5000)
REQUESTS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(Lane), COSTS), max_size=60)


def queued(requests: list[tuple[str, Lane, int]]) -> tuple[FairQueue[int], list[Waiting[int]]]:
    queue: FairQueue[int] = FairQueue()
    waiting = [Waiting(tenant, lane, cost, number) for number, (tenant, lane, cost) in enumerate(requests)]
    for one in waiting:
        queue.push(one)
    return queue, waiting


def drained(queue: FairQueue[int]) -> list[Waiting[int]]:
    served: list[Waiting[int]] = []
    while (one := queue.pop()) is not None:
        served.append(one)
    return served


@given(REQUESTS, st.lists(st.integers(0, 59)))
def test_each_is_served_once_or_removed_once_and_in_order_within_its_lane(
    requests: list[tuple[str, Lane, int]], removed: list[int]
) -> None:
    queue, waiting = queued(requests)
    gone = {place for place in removed if place < len(waiting)}
    assert all(queue.remove(waiting[place]) for place in gone)
    assert not any(queue.remove(waiting[place]) for place in gone)
    assert len(queue) == len(waiting) - len(gone)
    served = drained(queue)
    assert sorted(one.item for one in served) == [one.item for one in waiting if one.item not in gone]
    for tenant in "abc":
        for lane in Lane:
            numbers = [one.item for one in served if (one.tenant, one.lane) == (tenant, lane)]
            assert numbers == sorted(numbers)
    assert len(queue) == 0


@given(REQUESTS)
def test_shares_of_two_that_both_wait_differ_by_one_turn_of_each_at_most(requests: list[tuple[str, Lane, int]]) -> None:
    """The bound of the paper, at every moment up to that at which one of the two has nothing left."""
    queue, waiting = queued(requests)
    for first, second in (("a", "b"), ("a", "c"), ("b", "c")):
        left = Counter(one.tenant for one in waiting)
        largest = {
            name: max((one.cost for one in waiting if one.tenant == name), default=0) for name in (first, second)
        }
        shares: Counter[str] = Counter()
        queue, _ = queued(requests)
        while left[first] and left[second] and (one := queue.pop()) is not None:
            assert abs(shares[first] - shares[second]) <= largest[first] + largest[second]
            shares[one.tenant] += one.cost
            left[one.tenant] -= 1


@given(st.integers(1, 200), COSTS)
def test_a_text_behind_any_backlog_of_pictures_is_next_but_one(backlog: int, cost: int) -> None:
    for tenant in ("b", "a"):  # another tenant's pictures, and its own
        queue, _ = queued([("a", Lane.PICTURES, cost)] * backlog)
        queue.pop()
        queue.push(Waiting(tenant, Lane.TEXT, 1, -1))
        assert -1 in [one.item for one in (queue.pop(), queue.pop()) if one is not None]


def test_a_pause_saves_nothing_up_and_no_debt_is_forgotten_by_one() -> None:
    queue, _ = queued([("a", Lane.TEXT, 10)] * 20)
    for _ in range(10):
        queue.pop()
    for number in range(5):
        queue.push(Waiting("b", Lane.TEXT, 10, 100 + number))
    order = [one.tenant for one in drained(queue)][:6]
    assert order.count("b") == 3, "it takes turns from now on, and has no ten turns to catch up on"
    queue.push(Waiting("c", Lane.PICTURES, 1000, 0))
    queue.pop()
    queue.push(Waiting("c", Lane.PICTURES, 1000, 1))
    queue.push(Waiting("d", Lane.TEXT, 10, 2))
    assert [one.tenant for one in drained(queue)] == ["d", "c"], "who just had a large turn waits, though it paused"


def test_who_is_at_a_limit_of_its_own_is_passed_over_and_keeps_its_place() -> None:
    queue, _ = queued([("a", Lane.TEXT, 1), ("b", Lane.TEXT, 1)])
    assert queue.has_any(without=frozenset("a"))
    first = queue.pop(without=frozenset("a"))
    assert first is not None
    assert first.tenant == "b"
    assert queue.pop(without=frozenset("a")) is None
    assert not queue.has_any(without=frozenset("a"))
    assert [one.tenant for one in drained(queue)] == ["a"]
