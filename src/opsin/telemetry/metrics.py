"""Prometheus metrics: the seven VLM metrics by their exact names, and what a serving engineer needs beside them.

A value that the engine cannot tell is absent, never 0: its metric is not even registered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from opsin.core.stages import Stage, Timeline
from opsin.telemetry.engine_stages import EngineStageCollector
from opsin.telemetry.replicas import ReplicaCollector

LONG_TAIL = (10.0, 20.0, 60.0)
"""CPU engines and large pictures need them; added to every bucket list below."""

_PREPROCESS_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, *LONG_TAIL)
_ENCODER_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, *LONG_TAIL)
_LATENCY_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, *LONG_TAIL)
_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 1.0, 2.5, *LONG_TAIL)


class Metrics:
    """All metrics of one server, on a registry of its own.

    Args:
        stages: the stages that the engine reports; ``vision_encode`` decides on the encoder histogram.
        cache: whether the engine tells hits and misses of vision features.
        kv: whether the engine tells what its KV cache holds.
    """

    def __init__(self, *, stages: frozenset[Stage], cache: bool, kv: bool) -> None:
        self.registry = CollectorRegistry()
        self.preprocess = self._histogram(
            "vlm_image_preprocess_seconds", "Decode and render time of one picture", _PREPROCESS_BUCKETS
        )
        self.image_tokens = Counter(
            "vlm_total_image_tokens", "Image tokens of all prompts that were run", registry=self.registry
        )
        self.active_images = Gauge(
            "vlm_active_image_count", "Pictures of the requests in progress", registry=self.registry
        )
        self.encoder = (
            self._histogram("vlm_encoder_inference_seconds", "Vision encoder time of one picture", _ENCODER_BUCKETS)
            if Stage.VISION_ENCODE in stages
            else None
        )
        self.encoded_tiles = self._counter_if(
            Stage.VISION_ENCODE in stages, "opsin_encoded_tiles", "Tiles that went through the vision encoder"
        )
        self.cache_hits = self._counter_if(cache, "vlm_image_cache_hits_total", "Pictures whose features were cached")
        self.cache_misses = self._counter_if(cache, "vlm_image_cache_misses_total", "Pictures that had to be encoded")
        self.cache_turned_down = self._gauge_if(
            cache,
            "opsin_feature_cache_turned_down",
            "1 while hardly any picture comes again, so that only a sample is kept",
        )
        self.kv_image_ratio = self._gauge_if(
            kv,
            "vlm_kv_cache_image_tokens_ratio",
            "Share of image tokens among the tokens in the KV cache; 0 when empty",
        )
        self.ttft = self._histogram("opsin_time_to_first_token_seconds", "Arrival to first token", _LATENCY_BUCKETS)
        self.itl = self._histogram("opsin_inter_token_latency_seconds", "Gap between tokens", _TOKEN_BUCKETS)
        self.e2e = self._histogram("opsin_e2e_request_latency_seconds", "Arrival to last byte", _LATENCY_BUCKETS)
        self.stage = Histogram(
            "opsin_stage_seconds",
            "Critical-path time of one stage of one request",
            labelnames=["stage"],
            buckets=_LATENCY_BUCKETS,
            registry=self.registry,
        )
        self.requests = Counter(
            "opsin_requests", "Answered requests by status and error code", labelnames=["status", "code"],
            registry=self.registry,
        )  # fmt: skip
        self.tenant_requests = Counter(
            "opsin_tenant_requests", "Answered requests by tenant and error code", labelnames=["tenant", "code"],
            registry=self.registry,
        )  # fmt: skip
        self.tenant_image_tokens = Counter(
            "opsin_tenant_image_tokens", "Image tokens of a tenant's prompts that were run", labelnames=["tenant"],
            registry=self.registry,
        )  # fmt: skip
        self.plan_mismatch = Counter(
            "opsin_token_plan_mismatch",
            "Requests of which the engine counted other tokens than were planned",
            labelnames=["model", "engine"],
            registry=self.registry,
        )
        self.oom = Counter("opsin_oom", "Requests that failed for want of memory in the engine", registry=self.registry)
        self.running = Gauge("opsin_num_requests_running", "Requests in the engine's batch", registry=self.registry)
        self.waiting = Gauge("opsin_num_requests_waiting", "Requests that wait for the engine", registry=self.registry)
        self.memory = Gauge(
            "opsin_memory_bytes", "Resident memory per process, device memory, caches in either", labelnames=["where"],
            registry=self.registry,
        )  # fmt: skip
        self.replicas = ReplicaCollector()
        self.engine_stages = EngineStageCollector()
        for collector in (self.replicas, self.engine_stages):
            self.registry.register(collector)
        self.load_time = Gauge("opsin_model_load_seconds", "Time the model took to load", registry=self.registry)
        self.cache_lookups = Counter(
            "opsin_cache_lookups",
            "Lookups of pictures and what was made of them, by tier; features have metrics of their own",
            labelnames=["tier", "kind", "outcome"],
            registry=self.registry,
        )
        self.cache_write_failures = Counter(
            "opsin_cache_write_failures", "Values that a tier did not take in time", labelnames=["tier"],
            registry=self.registry,
        )  # fmt: skip
        self.purges = Counter(
            "opsin_purges", "Deletions by tier and what became of them", labelnames=["tier", "outcome"],
            registry=self.registry,
        )  # fmt: skip

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, buckets=buckets, registry=self.registry)

    def _counter_if(self, known: bool, name: str, text: str) -> Counter | None:
        return Counter(name, text, registry=self.registry) if known else None

    def _gauge_if(self, known: bool, name: str, text: str) -> Gauge | None:
        return Gauge(name, text, registry=self.registry) if known else None

    def looked_up(self, *, hits: int, misses: int) -> None:
        """Counts one request's feature lookups."""
        if self.cache_hits is not None and self.cache_misses is not None:
            self.cache_hits.inc(hits)
            self.cache_misses.inc(misses)

    def cache_lookup(self, tier: str, kind: str, outcome: Literal["hit", "miss", "error"]) -> None:
        """One look into one tier."""
        self.cache_lookups.labels(tier, kind, outcome).inc()

    def cache_write_failed(self, tier: str) -> None:
        """A value is not kept there, because the tier failed or too many wait for it."""
        self.cache_write_failures.labels(tier).inc()

    def encoded(self, pictures_s: Sequence[float], num_tiles: int) -> None:
        """Pictures of one request went through the encoder, each in its time."""
        if self.encoder is not None and self.encoded_tiles is not None:
            self.encoded_tiles.inc(num_tiles)
            for seconds in pictures_s:
                self.encoder.observe(seconds)

    def answered_tenant(self, tenant: str, code: str, image_tokens: int) -> None:
        """One of a tenant's requests was answered; ``image_tokens`` are those that were run."""
        self.tenant_requests.labels(tenant, code).inc()
        self.tenant_image_tokens.labels(tenant).inc(image_tokens)

    def kv_holds(self, *, tokens: int | None, image_tokens: int | None) -> None:
        """What the KV cache holds right now."""
        if self.kv_image_ratio is not None and tokens is not None and image_tokens is not None:
            self.kv_image_ratio.set(image_tokens / tokens if tokens else 0.0)

    def cache_is(self, *, turned_down: bool | None) -> None:
        """Whether the engine's feature cache has turned itself down."""
        if self.cache_turned_down is not None and turned_down is not None:
            self.cache_turned_down.set(turned_down)

    def finished(self, timeline: Timeline) -> None:
        """One request was answered completely."""
        self.e2e.observe(timeline.total_s)
        for stage, seconds in timeline.stages_s.items():
            self.stage.labels(stage.value).observe(seconds)
        if timeline.upstream_s is not None:
            self.stage.labels("upstream").observe(timeline.upstream_s)

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)
