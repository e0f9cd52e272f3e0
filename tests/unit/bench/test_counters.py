"""Hit rates from two servers' counters."""

from __future__ import annotations

import pytest

from opsin.bench.counters import caches, growth


def test_counters_grow_from_what_they_were() -> None:
    assert growth({"a": 3.0}, {"a": 5.0, "b": 1.0}) == {"a": 2.0, "b": 1.0}


def test_opsin_counts_misses_and_vllm_counts_lookups() -> None:
    told = caches(
        {
            "vlm_image_cache_hits_total": 3,
            "vlm_image_cache_misses_total": 1,
            "vllm:mm_cache_hits_total": 1,
            "vllm:mm_cache_queries_total": 4,
        }
    )
    assert [(cache.lookups, cache.hit_rate) for cache in told] == [(4, 0.75), (4, 0.25)]


def test_a_cache_that_nobody_asked() -> None:
    (told,) = caches({"vlm_image_cache_hits_total": 0, "vlm_image_cache_misses_total": 0})
    assert told.hit_rate == pytest.approx(0)
    assert caches({}) == []
