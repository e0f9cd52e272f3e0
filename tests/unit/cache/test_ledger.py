from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opsin.cache.ledger import Ledger

ENTRIES = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("pqrst"), st.integers(1, 60)), max_size=60)


@given(ENTRIES)
def test_sums_hold_and_nobody_is_robbed(entries: list[tuple[str, str, int]]) -> None:
    """Beside a plain dictionary of what should be there."""
    ledger, kept = Ledger(100, 70), dict[tuple[str, str], int]()
    for scope, record, growth in entries:
        victims = ledger.victims(scope, record, growth)
        if victims is not None:
            for victim in victims:
                assert ledger.remove(scope, victim)
                del kept[scope, victim]
            ledger.grow(scope, record, growth, expires_at=0)
            kept[scope, record] = kept.get((scope, record), 0) + growth
        assert ledger.size_bytes == sum(kept.values()) <= 100
        for each in "ab":
            assert set(ledger.records(each)) == {record for scope, record in kept if scope == each}
            assert sum(size for (scope, _), size in kept.items() if scope == each) <= 70


def test_what_was_used_again_outlives_what_was_not() -> None:
    ledger = Ledger(100, 100)
    for record in "abc":
        ledger.grow("scope", record, 30, expires_at=0)
    ledger.used("scope", "a")
    assert ledger.victims("scope", "d", 60) == ("b", "c")


def test_nothing_is_evicted_where_that_would_not_be_enough() -> None:
    ledger = Ledger(100, 50)
    ledger.grow("one", "a", 50, expires_at=0)
    ledger.grow("two", "b", 30, expires_at=0)
    assert ledger.victims("two", "c", 51) is None
    assert ledger.victims("three", "d", 21) is None
    assert ledger.victims("three", "d", 20) == ()
    assert Ledger(100, 50, evicts=False).victims("one", "a", 50) == ()
    full = Ledger(100, 50, evicts=False)
    full.grow("one", "a", 50, expires_at=0)
    assert full.victims("one", "b", 1) is None
