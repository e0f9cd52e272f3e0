from __future__ import annotations

from opsin.engine.crashes import CrashHistory


def test_the_third_crash_within_five_minutes_is_the_last():
    history = CrashHistory()
    assert history.record(0.0) == 1.0
    assert history.record(100.0) == 2.0
    assert history.record(299.0) is None


def test_old_crashes_are_forgotten():
    history = CrashHistory()
    assert history.record(0.0) == 1.0
    assert history.record(200.0) == 2.0
    assert history.record(301.0) == 2.0
    assert history.record(1000.0) == 1.0
