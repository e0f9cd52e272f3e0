"""A summary as tables in a terminal: one column per level, so that eight of them still fit. Computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from opsin.bench.card import Spread, WorkloadCard
from opsin.bench.counters import CacheCounter
from opsin.bench.level import LevelSummary
from opsin.bench.stats import QUANTILES, Distribution, Interval, Quantile
from opsin.bench.summary import Summary, Verdict

_STYLES = {
    Verdict.VALID: "bold green",
    Verdict.INVALID: "bold red",
    Verdict.FAILED: "bold red",
    Verdict.INTERRUPTED: "bold yellow",
}
_NOTHING = "—"
_BLANK = frozenset(f"{_NOTHING}/ ")

_Row = tuple[str, Callable[[LevelSummary], str]]


def show(summary: Summary, console: Console) -> None:
    """Prints everything."""
    for part in _parts(summary):
        console.print(part)


def _parts(summary: Summary) -> Iterator[RenderableType]:
    yield _head(summary)
    yield _card(summary.card, summary)
    if not summary.levels:
        return
    if summary.verdict is Verdict.FAILED:  # the other tables would be empty
        yield _failures(summary.levels)
    else:
        yield from _tables(summary)
    yield from (Text(f"note: {note}", style="yellow") for note in summary.notes)


def _tables(summary: Summary) -> Iterator[RenderableType]:
    yield _table("load", _LOAD, summary)
    yield _table(
        "latency of successes in ms", _LATENCY, summary, "value [95 % interval]; — or no row: n is too small to tell"
    )
    yield _table("per second: steady window / whole level", _RATES, summary)
    yield from _optional(summary)
    yield _table("client", _CLIENT, summary)


def _optional(summary: Summary) -> Iterator[RenderableType]:
    levels = summary.levels
    if any(level.goodput for level in levels):
        yield _table("goodput", list(_goodput_rows(levels)), summary)
    if any(level.stages for level in levels):
        yield _table("the server's stages in ms: median / p95, share of total", list(_stage_rows(levels)), summary)
    if any(level.cache_outcomes for level in levels):
        yield _table("TTFT by what the cache held, ms: median (n)", list(_outcome_rows(levels)), summary)
    if any(level.probes for level in levels):
        yield _table("text probes, TTFT in ms", list(_probe_rows(summary)), summary)
    if any(level.failures for level in levels):
        yield _failures(levels)
    if any(level.server for level in levels):
        yield _table("the server's processes", list(_server_rows(levels)), summary)


def _head(summary: Summary) -> RenderableType:
    server, where = summary.server, summary.provenance
    lines = [Text(f"{summary.verdict.value.upper()}", style=_STYLES[summary.verdict])]
    lines += [Text(f"  {reason}", style="red") for reason in summary.reasons]
    facts = [server.model, server.owned_by, server.version, server.revision and f"revision {server.revision[:16]}"]
    lines.append(Text(" · ".join(fact for fact in facts if fact)))
    lines.append(
        Text(f"client: opsin {where.opsin}, Python {where.python}, {where.cores} x {where.cpu}; {where.started_at}")
    )
    return Group(*lines)


def _card(card: WorkloadCard, summary: Summary) -> Table:
    table = Table(title="workload", title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    shares = ", ".join(f"{size} {share:.0%}" for size, share in list(card.resolutions.items())[:8])
    rows = [
        ("server", card.url),
        ("load", card.load),
        ("cache", f"declared {card.cache}; {_unique(card)}; measured {_hit_rates(summary.levels)}"),
        ("images per request", _spread(card.images_per_request, "{:g}")),
        ("pictures", f"{card.content}, {card.picture_format}, sent in the body as base64; {shares or 'none'}"),
        ("bytes per picture", f"{_spread(card.picture_bytes, '{:,.0f}')}; per pixel {_number(card.bytes_per_pixel)}"),
        ("bytes per body", _spread(card.body_bytes, "{:,.0f}")),
        ("text", f"{card.words} words, no two alike; detail {card.detail}"),
        ("output", f"{card.output_len} tokens at most{', ignore_eos' if card.ignore_eos else ''}, temperature 0"),
        ("seed, pictures", f"{card.seed}, sha256 {card.dataset[:16]}"),
        ("warm-up", ", ".join(f"{count} {outcome}" for outcome, count in summary.warmup.items()) or "none"),
    ]
    for name, value in rows:
        table.add_row(name, escape(value))
    return table


def _unique(card: WorkloadCard) -> str:
    return f"{card.unique_pictures} unique of {card.sent_pictures} pictures sent"


def _hit_rates(levels: Sequence[LevelSummary]) -> str:
    totals: dict[str, CacheCounter] = {}
    for cache in (cache for level in levels for cache in level.caches):
        so_far = totals.get(cache.name)
        hits, lookups = (so_far.hits, so_far.lookups) if so_far else (0.0, 0.0)
        totals[cache.name] = CacheCounter(cache.name, hits + cache.hits, lookups + cache.lookups, cache.of_pictures)
    return ", ".join(_hit_rate(cache) for cache in totals.values()) or "hit rate unknown"


def _hit_rate(cache: CacheCounter) -> str:
    return f"{cache.hit_rate:.1%} hits of {cache.lookups:,.0f} lookups ({cache.name})"


def _table(title: str, rows: Sequence[_Row], summary: Summary, caption: str | None = None) -> Table:
    """Without the rows in which no level has anything to tell."""
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    table.add_column()
    for level in summary.levels:
        table.add_column(level.name, justify="right")
    for name, cell in rows:
        cells = [cell(level) for level in summary.levels]
        if any(set(text) - _BLANK for text in cells):
            table.add_row(name, *map(escape, cells))
    return table


def _number(value: float | None) -> str:
    """Three digits that count."""
    if value is None:
        return _NOTHING
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _spread(spread: Spread | None, form: str) -> str:
    if spread is None:
        return _NOTHING
    if spread.low == spread.high:
        return form.format(spread.median)
    return f"{form.format(spread.median)} (median), {form.format(spread.low)} to {form.format(spread.high)}"


def _interval(interval: Interval | None) -> str:
    return f" [{_number(interval.low)}–{_number(interval.high)}]" if interval else ""


def _quantile(quantile: Quantile) -> str:
    if quantile.unbounded:
        return "unbounded"
    return _number(quantile.value) + _interval(quantile.interval)


def _of(name: str, q: float) -> Callable[[LevelSummary], str]:
    return lambda level: _quantile(level.latency_ms[name].at(q))


def _tail(name: str, q: float) -> Callable[[LevelSummary], str]:
    return lambda level: _quantile(level.latency_with_failures_ms[name].at(q))


def _maximum(name: str) -> Callable[[LevelSummary], str]:
    return lambda level: _number(level.latency_ms[name].maximum)


def _per_s(name: str) -> Callable[[LevelSummary], str]:
    def cell(level: LevelSummary) -> str:
        steady = getattr(level.rates.steady, name) if level.rates.steady else None
        return f"{_number(steady)} / {_number(getattr(level.rates.whole, name))}"

    return cell


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.0%})" if whole else str(part)


def _arrival_rate(level: LevelSummary) -> str:
    if level.rates.scheduled_rate is None:
        return _NOTHING
    return f"{_number(level.rates.scheduled_rate)} → {_number(level.rates.achieved_rate)}"


def _finish_reasons(level: LevelSummary) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in sorted(level.finish_reasons.items())) or _NOTHING


def _visual(level: LevelSummary) -> str:
    told = level.visual_tokens_per_image
    return _NOTHING if told is None or told.mean is None else f"{told.mean:,.1f} (max {_number(told.maximum)})"


_LOAD: list[_Row] = [
    ("planned / sent", lambda level: f"{level.planned} / {level.sent}"),
    ("succeeded, of sent", lambda level: _share(level.ok, level.sent)),
    ("in flight, mean", lambda level: _number(level.rates.in_flight)),
    ("arrivals per s, drawn → begun", _arrival_rate),
    ("finish reasons", _finish_reasons),
    ("output tokens, as the server counts", lambda level: f"{level.output_tokens:,}"),
    ("  of another length than asked for", lambda level: f"{level.not_requested_length}"),
    ("visual tokens per picture, mean", _visual),
]
_LATENCY: list[_Row] = [
    ("n", lambda level: str(level.ok)),
    *((f"TTFT p{q * 100:g}", _of("ttft", q)) for q in QUANTILES),
    ("TTFT max", _maximum("ttft")),
    ("TTFT p90, failures as ∞", _tail("ttft", 0.9)),
    ("TTFT p99, failures as ∞", _tail("ttft", 0.99)),
    ("TTFT since intended start, p95", _of("ttft_sched", 0.95)),
    ("TTFT after upload, p50", _of("ttft_after_upload", 0.5)),
    ("upload p50 / max", lambda level: f"{_of('upload', 0.5)(level)} / {_maximum('upload')(level)}"),
    ("TPOT p50", _of("tpot", 0.5)),
    ("TPOT p95", _of("tpot", 0.95)),
    ("  not applicable (under 2 tokens)", lambda level: str(level.latency_ms["tpot"].n_undefined)),
    ("gap between events p50", lambda level: _quantile(level.gap_ms.at(0.5))),
    ("  tokens per event", lambda level: _number(level.tokens_per_event)),
    ("longest gap of a request p95", _of("longest_gap", 0.95)),
    ("content complete p50", _of("e2e", 0.5)),
    ("content complete p95", _of("e2e", 0.95)),
    ("content complete p99", _of("e2e", 0.99)),
    ("content complete p90, failures as ∞", _tail("e2e", 0.9)),
    ("content complete p99, failures as ∞", _tail("e2e", 0.99)),
    ("stream closed p50", _of("stream_close", 0.5)),
]
_RATES: list[_Row] = [
    ("window, s", _per_s("window_s")),
    ("requests", _per_s("requests")),
    ("images", _per_s("images")),
    ("megapixels", _per_s("megapixels")),
    ("output tokens", _per_s("output_tokens")),
    ("input tokens, visual among them", _per_s("input_tokens")),
    ("visual tokens", _per_s("visual_tokens")),
    ("megabytes of bodies", _per_s("body_megabytes")),
]
_CLIENT: list[_Row] = [
    ("loop lag p99, ms (allowed)", lambda level: f"{level.client.lag_p99_ms:.2f} ({level.client.lag_limit_ms:.2f})"),
    ("busiest process, of a core", lambda level: f"{level.client.cpu_of_a_core:.0%}"),
    ("schedule delay p95, ms", _of("schedule_delay", 0.95)),
    ("connections opened, p50 ms", lambda level: _opened(level.latency_ms["connect"])),
]


def _opened(connect: Distribution) -> str:
    return f"{connect.n}, {_quantile(connect.at(0.5))}"


def _goodput_rows(levels: Sequence[LevelSummary]) -> Iterator[_Row]:
    yield "good, of sent", lambda level: _share(level.goodput.good, level.sent) if level.goodput else _NOTHING
    yield "  95 % interval", lambda level: _interval(level.goodput.interval).strip() if level.goodput else _NOTHING
    yield "good per s", lambda level: _number(level.goodput.per_s) if level.goodput else _NOTHING
    names = [one.slo for one in levels[0].goodput.slos] if levels[0].goodput else []
    for at, name in enumerate(names):
        yield f"kept {name} ms (not applicable)", _attained(at)


def _attained(at: int) -> Callable[[LevelSummary], str]:
    def cell(level: LevelSummary) -> str:
        if level.goodput is None:
            return _NOTHING
        one = level.goodput.slos[at]
        return f"{one.kept} of {one.applicable} ({one.not_applicable})"

    return cell


def _stage_rows(levels: Sequence[LevelSummary]) -> Iterator[_Row]:
    for name in dict.fromkeys(stage.stage for level in levels for stage in level.stages):
        yield name, _stage(name)


def _stage(name: str) -> Callable[[LevelSummary], str]:
    def cell(level: LevelSummary) -> str:
        stage = next((one for one in level.stages if one.stage == name), None)
        if stage is None:
            return _NOTHING
        return f"{_number(stage.ms.at(0.5).value)} / {_number(stage.ms.at(0.95).value)}, {stage.share:.0%}"

    return cell


def _outcome_rows(levels: Sequence[LevelSummary]) -> Iterator[_Row]:
    for name in dict.fromkeys(one.outcome for level in levels for one in level.cache_outcomes):
        yield name, _outcome(name)


def _outcome(name: str) -> Callable[[LevelSummary], str]:
    def cell(level: LevelSummary) -> str:
        one = next((one for one in level.cache_outcomes if one.outcome == name), None)
        return _NOTHING if one is None else f"{_quantile(one.ttft_ms.at(0.5))} ({one.ttft_ms.n})"

    return cell


def _probe_rows(summary: Summary) -> Iterator[_Row]:
    idle = summary.idle_probe_ttft_ms
    if idle is not None:
        yield "p50 before the load", lambda _: _quantile(idle.at(0.5))
    yield "p50", lambda level: _quantile(level.probes.ttft_ms.at(0.5)) if level.probes else _NOTHING
    yield "p99", lambda level: _quantile(level.probes.ttft_ms.at(0.99)) if level.probes else _NOTHING
    yield "max", lambda level: _number(level.probes.ttft_ms.maximum) if level.probes else _NOTHING
    yield "n (failed)", lambda level: f"{level.probes.ttft_ms.n} ({level.probes.failed})" if level.probes else _NOTHING


def _server_rows(levels: Sequence[LevelSummary]) -> Iterator[_Row]:
    yield "resident memory, MB: begin → peak", _memory
    yield "cores used, mean", lambda level: _number(level.server.mean_cores) if level.server else _NOTHING
    yield "samples per s", lambda level: _number(level.server.samples_per_s) if level.server else _NOTHING
    processes = {one.pid: one.name for level in levels if level.server for one in level.server.processes}
    for pid, name in processes.items():
        yield f"  {name} ({pid}): peak MB, CPU s", _process(pid)


def _memory(level: LevelSummary) -> str:
    if level.server is None:
        return _NOTHING
    return f"{level.server.first_rss_bytes / 1e6:,.0f} → {level.server.peak_rss_bytes / 1e6:,.0f}"


def _process(pid: int) -> Callable[[LevelSummary], str]:
    def cell(level: LevelSummary) -> str:
        one = next((one for one in level.server.processes if one.pid == pid), None) if level.server else None
        return _NOTHING if one is None else f"{one.peak_rss_bytes / 1e6:,.0f}, {one.cpu_s:.1f}"

    return cell


def _failures(levels: Sequence[LevelSummary]) -> Table:
    table = Table(title="failures", title_justify="left")
    for heading in ("level", "class", "n", "of all", "fails after, p50 ms", "events before", "first example"):
        table.add_column(heading, overflow="fold" if heading == "first example" else "ellipsis")
    for level in levels:
        for one in level.failures:
            after = one.time_to_failure_ms
            shown = _quantile(after.at(0.5)) if after.at(0.5).value is not None else f"max {_number(after.maximum)}"
            cells = (level.name, one.outcome, str(one.count), f"{one.share:.0%}", shown, str(one.partial_events))
            table.add_row(*(escape(cell) for cell in cells), escape(one.example[:120]))
    return table
