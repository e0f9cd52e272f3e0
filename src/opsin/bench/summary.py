"""From the lines of a run to every number that is printed. Pure; what reports and comparisons start from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from opsin.bench.card import WorkloadCard, workload_card
from opsin.bench.config import BenchConfig, CacheKind
from opsin.bench.level import LevelSummary, summarise_level
from opsin.bench.metrics import is_ok, ttft
from opsin.bench.record import Header, Kind, LevelEnd, Provenance, Record, Results, ServerFacts
from opsin.bench.stats import Distribution, distribution


class Verdict(StrEnum):
    """Whether the numbers may be used."""

    VALID = "valid"
    INVALID = "invalid"  # the client, not the server, was the limit; or something else was measured than declared
    FAILED = "failed"  # no request succeeded
    INTERRUPTED = "interrupted"


class Summary(msgspec.Struct):
    """A whole run."""

    verdict: Verdict
    reasons: list[str]
    server: ServerFacts
    provenance: Provenance
    card: WorkloadCard
    warmup: Counter[str]  # outcomes
    idle_probe_ttft_ms: Distribution | None  # texts with nothing beside them
    levels: list[LevelSummary]
    notes: list[str]


def summarise(results: Results) -> Summary:
    """Everything, from records alone."""
    config = BenchConfig.model_validate(results.header.config)
    by_level = _by(results.records, lambda record: record.level)
    before = by_level.get(-1, [])
    levels = [summarise_level(by_level.get(end.level, []), end, config) for end in _ends(results, by_level)]
    card = workload_card(config, results.header, results.records)
    verdict, reasons = _verdict(results, config, card, levels)
    idle = [time for record in before if record.kind is Kind.PROBE and (time := ttft(record)) is not None]
    return Summary(
        verdict=verdict,
        reasons=reasons,
        server=results.header.server,
        provenance=results.header.provenance,
        card=card,
        warmup=Counter(record.outcome.value for record in before if record.kind in (Kind.WARMUP, Kind.PRIME)),
        idle_probe_ttft_ms=distribution(idle) if idle else None,
        levels=levels,
        notes=[*results.header.notes, *_remarks(results.header, config, levels)],
    )


def exit_status(summary: Summary) -> int:
    """Of the command."""
    return {Verdict.VALID: 0, Verdict.INVALID: 1, Verdict.FAILED: 1, Verdict.INTERRUPTED: 130}[summary.verdict]


def _by(records: Sequence[Record], key: Callable[[Record], int]) -> dict[int, list[Record]]:
    groups: dict[int, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups


def _ends(results: Results, by_level: dict[int, list[Record]]) -> list[LevelEnd]:
    """The levels with load in them; one that a killed run left without its end gets one from its records."""
    ends = {end.level: end for end in results.levels}
    for level in by_level.keys() - ends.keys() - {-1}:
        ends[level] = _end_of(level, by_level[level], results.header)
    return [ends[level] for level in sorted(ends)]


def _end_of(level: int, records: Sequence[Record], header: Header) -> LevelEnd:
    config = BenchConfig.model_validate(header.config)
    load = config.levels[level]
    return LevelEnd(
        level=level,
        planned=len(records),
        concurrency=None if config.is_open_loop else int(load),
        rate=load if config.is_open_loop else None,
        t_begin=min(record.t_sched for record in records),
        t_end=max(record.t_end for record in records),
        workers=[],
    )


def _verdict(
    results: Results, config: BenchConfig, card: WorkloadCard, levels: Sequence[LevelSummary]
) -> tuple[Verdict, list[str]]:
    if results.end.reason == "interrupted":
        return Verdict.INTERRUPTED, ["interrupted before its end"]
    if not any(is_ok(record) for record in results.records if record.kind is Kind.LOAD):
        return Verdict.FAILED, [results.end.message or f"no request succeeded{_why(levels)}"]
    reasons = [results.end.message or "the run failed"] if results.end.reason == "failed" else []
    reasons += [f"{level.name}: {problem}" for level in levels for problem in level.client.problems]
    if config.cache.kind is CacheKind.COLD:
        reasons += _not_cold(card, levels)
    return (Verdict.INVALID if reasons else Verdict.VALID), reasons


def _why(levels: Sequence[LevelSummary]) -> str:
    """The commonest failure."""
    failures = [failure for level in levels for failure in level.failures]
    if not failures:
        return ""
    most = max(failures, key=lambda failure: failure.count)
    return f": {most.count} x {most.outcome}" + (f": {most.example}" if most.example else "")


_MAX_COLD_HITS = 0.01


_REMEDY = "; if an earlier run sent the same pictures, use another --seed"


def _not_cold(card: WorkloadCard, levels: Sequence[LevelSummary]) -> list[str]:
    """A repeated picture is answered from a cache, and faster than any ceiling of the hardware."""
    reasons = list[str]()
    if card.unique_pictures < card.sent_pictures:
        reasons.append(f"declared cold, and {card.sent_pictures - card.unique_pictures} pictures had come before")
    reasons += [
        f"{level.name}: declared cold, and {cache.hit_rate:.1%} of lookups of {cache.name} were hits{_REMEDY}"
        for level in levels
        for cache in level.caches
        if cache.of_pictures and cache.hit_rate > _MAX_COLD_HITS
    ]
    return reasons


def _remarks(header: Header, config: BenchConfig, levels: Sequence[LevelSummary]) -> list[str]:
    remarks = list[str]()
    has_pictures = config.images.high > 0
    if has_pictures and any(level.ok and level.visual_tokens_per_image is None for level in levels):
        remarks.append("the server does not tell visual tokens: that it looks at the pictures is not shown")
    if has_pictures and not any(cache.of_pictures for level in levels for cache in level.caches):
        remarks.append("no cache counters at /metrics: the hit rate is not known")
    if all(level.server is None for level in levels):
        remarks.append("the server's processes were not seen: give --server-pid, or run the benchmark on its machine")
    load, cores = header.provenance.load_average, header.provenance.cores
    if load is not None and load > cores / 2:
        remarks.append(f"the client's machine was busy before the run: load average {load:.1f} on {cores} cores")
    return remarks
