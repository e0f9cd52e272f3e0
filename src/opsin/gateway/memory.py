"""Memory gauges, read at scrape time."""

from __future__ import annotations

import psutil

from opsin.engine.api import EngineStats
from opsin.telemetry.metrics import Metrics


def observe_memory(metrics: Metrics, stats: EngineStats) -> None:
    """Resident bytes of gateway and engine process, bytes of a device where there is one, and the caches in either."""
    metrics.memory.labels(where="gateway").set(psutil.Process().memory_info().rss)
    for where, value in (
        ("engine", stats.process_memory_bytes),
        ("device", stats.device_memory_bytes),
        ("feature_cache", stats.cache_bytes),
        ("prefix_cache", stats.prefix_cache_bytes),
        ("kv_cache", stats.kv_cache_bytes),
    ):
        if value is not None:
            metrics.memory.labels(where=where).set(value)
