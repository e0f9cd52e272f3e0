"""Metrics of replicas: absent without any, and gone with a replica that is gone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

_LABELS = ("model", "replica")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSample:
    """One replica of one model. ``states`` are all that it could be in, and ``state`` is one of them."""

    model: str
    replica: str
    state: str
    states: tuple[str, ...]
    requests: int
    visual_tokens: int
    ejections: int
    retries: int


class ReplicaCollector(Collector):
    """Shows what it was told last."""

    def __init__(self) -> None:
        self.samples: tuple[ReplicaSample, ...] = ()

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """See prometheus_client."""
        if not self.samples:
            return
        state = GaugeMetricFamily(
            "opsin_replica_state", "1 for the state that a replica is in", labels=(*_LABELS, "state")
        )
        requests = GaugeMetricFamily("opsin_replica_requests_running", "Requests at a replica", labels=_LABELS)
        tokens = GaugeMetricFamily("opsin_replica_visual_tokens", "Their visual tokens, if counted", labels=_LABELS)
        ejections = CounterMetricFamily("opsin_replica_ejections", "Times it was left alone", labels=_LABELS)
        retries = CounterMetricFamily(
            "opsin_replica_retries", "Requests that it refused before any work, sent to another", labels=_LABELS
        )
        for sample in self.samples:
            labels = (sample.model, sample.replica)
            for one in sample.states:
                state.add_metric((*labels, one), float(one == sample.state))
            requests.add_metric(labels, sample.requests)
            tokens.add_metric(labels, sample.visual_tokens)
            ejections.add_metric(labels, sample.ejections)
            retries.add_metric(labels, sample.retries)
        yield from (state, requests, tokens, ejections, retries)
