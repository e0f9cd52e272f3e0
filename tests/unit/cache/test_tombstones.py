from __future__ import annotations

from opsin.cache.tombstones import Tombstones


def test_a_tombstone_stands_for_its_time_and_for_its_own() -> None:
    now = 0.0
    tombstones = Tombstones(10, now=lambda: now)
    tombstones.bury("scope", "a")
    now = 5.0
    tombstones.bury("whole", None)
    assert tombstones.covers("scope", "a")
    assert tombstones.covers("whole", "anything")
    assert not tombstones.covers("scope", "b")
    assert not tombstones.covers("other", "a")
    now = 10.0
    assert not tombstones.covers("scope", "a")
    assert tombstones.covers("whole", "a")
    now = 12.0
    tombstones.bury("whole", None)
    now = 21.0
    assert tombstones.covers("whole", "a"), "buried again"


def test_one_tenants_deletions_push_nobody_elses_out() -> None:
    tombstones = Tombstones(10, now=lambda: 0.0)
    tombstones.bury("victim", "a")
    for number in range(200_000):
        tombstones.bury("greedy", str(number))
    assert tombstones.covers("victim", "a")
    assert tombstones.covers("greedy", "0")
    assert not tombstones.covers("other", "0")


def test_work_that_began_later_is_not_meant() -> None:
    now = 5.0
    tombstones = Tombstones(10, now=lambda: now)
    tombstones.bury("scope", "a")
    assert tombstones.covers("scope", "a", began_at=5.0)
    assert not tombstones.covers("scope", "a", began_at=5.1)
    tombstones.lift("scope", "a")
    assert not tombstones.covers("scope", "a", began_at=1.0)
