"""The cache counters that servers export to Prometheus, as far as a hit rate needs them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class _Exported:
    """Names of a cache's counters: hits, and either misses or all lookups."""

    cache: str
    hits: str
    misses: str | None = None
    lookups: str | None = None
    of_pictures: bool = True


_EXPORTED = (
    _Exported("picture features", "vlm_image_cache_hits_total", misses="vlm_image_cache_misses_total"),
    _Exported("vLLM's multimodal inputs", "vllm:mm_cache_hits_total", lookups="vllm:mm_cache_queries_total"),
    _Exported(
        "vLLM's prompt prefixes (tokens)",
        "vllm:prefix_cache_hits_total",
        lookups="vllm:prefix_cache_queries_total",
        of_pictures=False,
    ),
)
NAMES = {name for one in _EXPORTED for name in (one.hits, one.misses, one.lookups) if name is not None}


class CacheCounter(msgspec.Struct):
    """One cache of the server over one level."""

    name: str
    hits: float
    lookups: float
    of_pictures: bool  # False: of prompts, where a shared template is hit by right

    @property
    def hit_rate(self) -> float:
        """Hits per lookup."""
        return self.hits / self.lookups if self.lookups else 0.0


def growth(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What counters gained. One that is first seen afterwards began at 0."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def caches(grown: Mapping[str, float]) -> list[CacheCounter]:
    """Of counters' growth; those caches that the server counts."""
    return [_counter(one, grown) for one in _EXPORTED if one.hits in grown]


def _counter(exported: _Exported, grown: Mapping[str, float]) -> CacheCounter:
    hits = grown[exported.hits]
    misses = grown.get(exported.misses, 0.0) if exported.misses else 0.0
    lookups = grown.get(exported.lookups, 0.0) if exported.lookups else hits + misses
    return CacheCounter(exported.cache, hits, lookups, exported.of_pictures)
