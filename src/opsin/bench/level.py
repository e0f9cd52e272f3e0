"""The numbers of one level. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from opsin.bench import metrics
from opsin.bench.config import BenchConfig
from opsin.bench.counters import CacheCounter, caches
from opsin.bench.health import ClientHealth, client_health
from opsin.bench.metrics import is_ok
from opsin.bench.record import Kind, LevelEnd, Outcome, Record
from opsin.bench.stats import Distribution, Interval, distribution, wilson
from opsin.bench.throughput import Rates, rates
from opsin.bench.use import ServerUse, server_use
from opsin.core.stages import Stage

_Metric = Callable[[Record], float | None]

LATENCIES: dict[str, _Metric] = {
    "ttft": metrics.ttft,
    "ttft_sched": metrics.ttft_sched,
    "ttft_after_upload": metrics.ttft_after_upload,
    "ttfo": metrics.ttfo,
    "tpot": metrics.tpot,
    "longest_gap": metrics.longest_gap,
    "e2e": metrics.e2e,
    "e2e_sched": metrics.e2e_sched,
    "stream_close": metrics.stream_close,
    "upload": metrics.upload,
    "connect": metrics.connect,
    "schedule_delay": metrics.schedule_delay,
}
"""In milliseconds, over successes."""

_TIMELINE = (*Stage, "upstream", "unattributed", "total")
_WITH_FAILURES = ("ttft", "e2e", "ttft_sched", "e2e_sched")


class Failures(msgspec.Struct):
    """All requests of one class."""

    outcome: Outcome
    count: int
    share: float  # of those sent
    example: str
    time_to_failure_ms: Distribution
    partial_events: int  # events with output before the end


class Attainment(msgspec.Struct):
    """One limit over the successes that it applies to."""

    slo: str
    kept: int
    applicable: int
    not_applicable: int


class Goodput(msgspec.Struct):
    """A request is good when it succeeds and keeps every limit that applies to it."""

    good: int
    share: float  # of those sent
    interval: Interval | None
    per_s: float  # in the steady window, else the whole
    slos: list[Attainment]


class StageShare(msgspec.Struct):
    """One stage of the server's own timeline, over the successes that tell it."""

    stage: str
    ms: Distribution
    share: float  # of the summed total


class CacheOutcome(msgspec.Struct):
    """Successes of which the server tells the same about their pictures."""

    outcome: str
    ttft_ms: Distribution


class Probes(msgspec.Struct):
    """Short texts sent beside the load."""

    ttft_ms: Distribution
    failed: int  # those not sent because four others were unanswered among them


class LevelSummary(msgspec.Struct):
    """One level of load."""

    name: str
    planned: int
    sent: int
    ok: int
    failures: list[Failures]
    latency_ms: dict[str, Distribution]  # successes
    latency_with_failures_ms: dict[str, Distribution]  # a failure counts as infinitely late
    gap_ms: Distribution  # between events of all successes together
    tokens_per_event: float | None
    rates: Rates
    goodput: Goodput | None
    finish_reasons: dict[str, int]
    output_tokens: int  # of successes, as the server counts
    not_requested_length: int  # successes whose n_out is not what was asked for
    visual_tokens_per_image: Distribution | None
    stages: list[StageShare]
    cache_outcomes: list[CacheOutcome]
    caches: list[CacheCounter]
    probes: Probes | None
    server: ServerUse | None
    client: ClientHealth


def summarise_level(records: Sequence[Record], end: LevelEnd, config: BenchConfig) -> LevelSummary:
    """Of all records of one level, probes among them."""
    load = [record for record in records if record.kind is Kind.LOAD]
    sent = [record for record in load if metrics.was_sent(record)]
    successes = [record for record in load if is_ok(record)]
    measured = rates(load, end)
    visual = [value for record in successes if (value := metrics.visual_per_image(record)) is not None]
    return LevelSummary(
        name=f"rate {end.rate:g}/s" if end.rate is not None else f"concurrency {end.concurrency}",
        planned=end.planned,
        sent=len(sent),
        ok=len(successes),
        failures=_failures(load),
        latency_ms={name: _over(successes, metric) for name, metric in LATENCIES.items()},
        latency_with_failures_ms={name: _with_failures(sent, LATENCIES[name]) for name in _WITH_FAILURES},
        gap_ms=distribution([gap for record in successes for gap in metrics.gaps(record)]),
        tokens_per_event=_mean([metrics.tokens_per_event(record) for record in successes]),
        rates=measured,
        goodput=_goodput(sent, config, measured, end.t_begin) if config.goodput else None,
        finish_reasons=dict(Counter(record.finish_reason or "none" for record in successes)),
        output_tokens=sum(record.n_out or 0 for record in successes),
        not_requested_length=sum(record.n_out not in (None, record.requested_out) for record in successes),
        visual_tokens_per_image=distribution(visual) if visual else None,
        stages=_stages(successes),
        cache_outcomes=_cache_outcomes(successes),
        caches=caches(end.counters),
        probes=_probes([record for record in records if record.kind is Kind.PROBE]),
        server=server_use(end.server) if end.server is not None else None,
        client=client_health(load, end, measured),
    )


def _over(records: Sequence[Record], metric: _Metric) -> Distribution:
    values = [value for record in records if (value := metric(record)) is not None]
    return distribution(values, n_undefined=len(records) - len(values))


def _with_failures(sent: Sequence[Record], metric: _Metric) -> Distribution:
    values = [metric(record) if is_ok(record) else math.inf for record in sent]
    defined = [value for value in values if value is not None]
    return distribution(defined, n_undefined=len(values) - len(defined))


def _mean(values: Sequence[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return sum(told) / len(told) if told else None


def _failures(load: Sequence[Record]) -> list[Failures]:
    groups: dict[Outcome, list[Record]] = {}
    for record in load:
        if not is_ok(record):
            groups.setdefault(record.outcome, []).append(record)
    return [
        Failures(
            outcome=outcome,
            count=len(records),
            share=len(records) / len(load),
            example=next((record.error_excerpt for record in records if record.error_excerpt), ""),
            time_to_failure_ms=_over(records, metrics.time_to_failure),
            partial_events=sum(len(record.events) for record in records),
        )
        for outcome, records in sorted(groups.items(), key=lambda group: -len(group[1]))
    ]


def _goodput(sent: Sequence[Record], config: BenchConfig, measured: Rates, begin: int) -> Goodput:
    verdicts = {
        id(record): [metrics.keeps(record, slo, open_loop=config.is_open_loop) for slo in config.goodput]
        for record in sent
        if is_ok(record)
    }
    good = [record for record in sent if id(record) in verdicts and False not in verdicts[id(record)]]
    window_s = (measured.steady or measured.whole).window_s
    within = sum((record.t_L or record.t_end) - begin <= window_s * 1e9 for record in good)
    return Goodput(
        good=len(good),
        share=len(good) / len(sent) if sent else 0.0,
        interval=wilson(len(good), len(sent)),
        per_s=within / window_s,
        slos=[
            _attainment(str(slo), [of_all[at] for of_all in verdicts.values()]) for at, slo in enumerate(config.goodput)
        ],
    )


def _attainment(slo: str, verdicts: Sequence[bool | None]) -> Attainment:
    not_applicable = verdicts.count(None)
    return Attainment(slo, verdicts.count(True), len(verdicts) - not_applicable, not_applicable)


def _stages(successes: Sequence[Record]) -> list[StageShare]:
    timelines = [record.timeline_ms for record in successes if record.timeline_ms]
    total = sum(timeline.get("total_ms", 0.0) for timeline in timelines)
    shares = list[StageShare]()
    for name in _TIMELINE:
        values = [timeline[f"{name}_ms"] for timeline in timelines if f"{name}_ms" in timeline]
        if values:
            shares.append(StageShare(name, distribution(values), sum(values) / total if total else 0.0))
    return shares


def _cache_outcomes(successes: Sequence[Record]) -> list[CacheOutcome]:
    groups: dict[str, list[Record]] = {}
    for record in successes:
        outcome = metrics.cache_outcome(record)
        if outcome is not None:
            groups.setdefault(outcome, []).append(record)
    return [CacheOutcome(outcome, _over(records, metrics.ttft)) for outcome, records in sorted(groups.items())]


def _probes(probes: Sequence[Record]) -> Probes | None:
    if not probes:
        return None
    successes = [record for record in probes if is_ok(record)]
    return Probes(_over(successes, metrics.ttft), failed=len(probes) - len(successes))
