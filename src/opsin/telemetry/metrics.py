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
        self._register_pictures(encodes=Stage.VISION_ENCODE in stages, cache=cache, kv=kv)
        self._register_requests()
        self._register_server()

    def _register_pictures(self, *, encodes: bool, cache: bool, kv: bool) -> None:
        self.preprocess = self._histogram(
            "vlm_image_preprocess_seconds", "Decode and render time of one picture", _PREPROCESS_BUCKETS
        )
        self.image_tokens = self._counter("vlm_total_image_tokens", "Image tokens of all prompts that were run")
        self.active_images = self._gauge("vlm_active_image_count", "Pictures of the requests in progress")
        encoder_text = "Vision encoder time of one picture"
        self.encoder = (
            self._histogram("vlm_encoder_inference_seconds", encoder_text, _ENCODER_BUCKETS) if encodes else None
        )
        self.encoded_tiles = self._counter_if(
            encodes, "opsin_encoded_tiles", "Tiles that went through the vision encoder"
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

    def _register_requests(self) -> None:
        self.ttft = self._histogram("opsin_time_to_first_token_seconds", "Arrival to first token", _LATENCY_BUCKETS)
        self.itl = self._histogram("opsin_inter_token_latency_seconds", "Gap between tokens", _TOKEN_BUCKETS)
        self.e2e = self._histogram("opsin_e2e_request_latency_seconds", "Arrival to last byte", _LATENCY_BUCKETS)
        self.stage = self._histogram(
            "opsin_stage_seconds", "Critical-path time of one stage of one request", _LATENCY_BUCKETS, "stage"
        )
        self.requests = self._counter("opsin_requests", "Answered requests by status and error code", "status", "code")
        self.tenant_requests = self._counter(
            "opsin_tenant_requests", "Answered requests by tenant and error code", "tenant", "code"
        )
        self.tenant_image_tokens = self._counter(
            "opsin_tenant_image_tokens", "Image tokens of a tenant's prompts that were run", "tenant"
        )
        mismatch_text = "Requests of which the engine counted other tokens than were planned"
        self.plan_mismatch = self._counter("opsin_token_plan_mismatch", mismatch_text, "model", "engine")
        self.oom = self._counter("opsin_oom", "Requests that failed for want of memory in the engine")
        self.running = self._gauge("opsin_num_requests_running", "Requests in the engine's batch")
        self.waiting = self._gauge("opsin_num_requests_waiting", "Requests that wait for the engine")

    def _register_server(self) -> None:
        memory_text = "Resident memory per process, device memory, caches in either"
        self.memory = self._gauge("opsin_memory_bytes", memory_text, "where")
        self.replicas = ReplicaCollector()
        self.engine_stages = EngineStageCollector()
        for collector in (self.replicas, self.engine_stages):
            self.registry.register(collector)
        self.load_time = self._gauge("opsin_model_load_seconds", "Time the model took to load")
        lookups_text = "Lookups of pictures and what was made of them, by tier; features have metrics of their own"
        self.cache_lookups = self._counter("opsin_cache_lookups", lookups_text, "tier", "kind", "outcome")
        self.cache_write_failures = self._counter(
            "opsin_cache_write_failures", "Values that a tier did not take in time", "tier"
        )
        self.purges = self._counter("opsin_purges", "Deletions by tier and what became of them", "tier", "outcome")

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _counter_if(self, known: bool, name: str, text: str) -> Counter | None:
        return self._counter(name, text) if known else None

    def _gauge_if(self, known: bool, name: str, text: str) -> Gauge | None:
        return self._gauge(name, text) if known else None

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
