"""Snapshots of several engines as one."""

from __future__ import annotations

from opsin.engine.api import EngineStats


def test_sums_of_what_is_known() -> None:
    one = EngineStats(running=1, waiting=2, kv_tokens=10, process_memory_bytes=0)
    other = EngineStats(running=3, waiting=0, kv_tokens=5)
    total = EngineStats.total([one, other])
    assert total == EngineStats(running=4, waiting=2, kv_tokens=15, process_memory_bytes=0)
    assert total.cache_bytes is None, "nobody can tell, which is not 0"
