"""Every printed number comes from records: known ones in, known ones out."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from opsin.bench.record import End, Kind, Outcome, Record, SentPicture, ServerProcess, ServerSamples
from opsin.bench.show import show
from opsin.bench.summary import Summary, Verdict, exit_status, summarise
from tests.unit.bench.records import MS, a_failure, a_level, a_record, the_results

SECOND = SentPicture(1024, 512, 200_000, "fedcba9876543210")
THIRD = SentPicture(512, 512, 90_000, "aaaa")


def shown(summary: Summary) -> str:
    console = Console(file=io.StringIO(), width=160)
    show(summary, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def a_mix() -> list[Record]:
    faults = (Outcome.INBAND_ERROR, Outcome.TRUNCATED, Outcome.OOM, Outcome.EMPTY)
    good = [a_record(id=n, start=(1000 + n) * MS, pictures=[SentPicture(512, 512, 1, f"{n}")]) for n in range(24)]
    bad = [a_failure(fault, id=24 + n, error_excerpt=f"{fault} {n}", pictures=[]) for fault in faults for n in range(4)]
    return [*good, *bad]


def test_the_mix_has_24_good_and_16_bad() -> None:
    (level,) = summarise(the_results(a_mix(), a_level(planned=40))).levels
    assert (level.sent, level.ok, level.output_tokens) == (40, 24, 120)
    assert {one.outcome: (one.count, one.share) for one in level.failures} == {
        Outcome.INBAND_ERROR: (4, 0.1),
        Outcome.TRUNCATED: (4, 0.1),
        Outcome.OOM: (4, 0.1),
        Outcome.EMPTY: (4, 0.1),
    }
    assert level.failures[0].example == "inband_error 0"
    assert level.failures[0].time_to_failure_ms.maximum == 5


def test_failures_do_not_improve_the_tail() -> None:
    (level,) = summarise(the_results(a_mix())).levels
    assert level.latency_ms["ttft"].n == 24
    assert level.latency_with_failures_ms["ttft"].n == 40
    assert level.latency_with_failures_ms["ttft"].at(0.5).value == pytest.approx(100)
    assert level.latency_with_failures_ms["ttft"].at(0.9).unbounded


def test_goodput_is_over_everything_sent() -> None:
    slow = a_record(t_1=1300 * MS, t_L=1340 * MS)
    one_token = a_record(n_out=1)
    records = [a_record(), slow, one_token, a_failure(Outcome.SHED)]
    (level,) = summarise(the_results(records, goodput=["ttft:200", "tpot:20"])).levels
    assert level.goodput is not None
    assert (level.goodput.good, level.goodput.share) == (2, 0.5)
    assert [(one.slo, one.kept, one.applicable, one.not_applicable) for one in level.goodput.slos] == [
        ("ttft:200", 2, 3, 0),
        ("tpot:20", 2, 2, 1),
    ]


def test_stages_are_those_that_were_told_in_their_order() -> None:
    records = [
        a_record(timeline_ms={"media_load_ms": 5, "prefill_ms": 15, "total_ms": 25, "unattributed_ms": 5}),
        a_record(timeline_ms={"media_load_ms": 5, "vision_encode_ms": 60, "prefill_ms": 10, "total_ms": 75}),
        a_record(),
    ]
    (level,) = summarise(the_results(records)).levels
    assert [stage.stage for stage in level.stages] == [
        "media_load",
        "vision_encode",
        "prefill",
        "unattributed",
        "total",
    ]
    assert [stage.share for stage in level.stages] == [0.1, 0.6, 0.25, 0.05, 1.0]
    assert [(one.outcome, one.ttft_ms.n) for one in level.cache_outcomes] == [("all cached", 1), ("encoded", 1)]


def test_the_card_is_measured_on_what_was_sent() -> None:
    records = [
        a_record(pictures=[SECOND, THIRD]),
        a_record(kind=Kind.WARMUP, level=-1, pictures=[SECOND]),
        a_record(kind=Kind.PROBE, pictures=[], t_1=1010 * MS),
    ]
    card = summarise(the_results(records, cache="mixed:2:1")).card
    assert (card.sent_pictures, card.unique_pictures) == (3, 2)
    assert card.resolutions == {"1024x512": 0.5, "512x512": 0.5}
    assert card.picture_bytes is not None
    assert (card.picture_bytes.low, card.picture_bytes.median, card.picture_bytes.high) == (90_000, 145_000, 200_000)
    assert card.bytes_per_pixel == pytest.approx(290_000 / (1024 * 512 + 512 * 512))


def test_probes_and_warm_up_are_no_load() -> None:
    records = [
        a_record(),
        a_record(kind=Kind.WARMUP, level=-1, pictures=[THIRD]),
        a_failure(Outcome.CONNECT, kind=Kind.WARMUP, level=-1, pictures=[]),
        a_record(kind=Kind.PROBE, pictures=[], t_1=1030 * MS),
        a_failure(Outcome.NOT_STARTED, kind=Kind.PROBE, pictures=[]),
        a_record(kind=Kind.PROBE, level=-1, pictures=[], t_1=1010 * MS),
    ]
    summary = summarise(the_results(records))
    (level,) = summary.levels
    assert (level.sent, level.ok) == (1, 1)
    assert summary.warmup == {"ok": 1, "connect": 1}
    assert level.probes is not None
    assert (level.probes.ttft_ms.maximum, level.probes.failed) == (30, 1)
    assert summary.idle_probe_ttft_ms is not None
    assert summary.idle_probe_ttft_ms.maximum == 10


def test_the_servers_memory_and_cpu() -> None:
    samples = ServerSamples(
        ticks_ns=[1000 * MS, 1100 * MS, 1200 * MS],
        processes=[
            ServerProcess(7, "gateway", [10, 30, 10], [1.0, 1.1, 1.2]),
            ServerProcess(8, "engine", [None, 50, 90], [None, 5.0, 5.1]),
        ],
    )
    (level,) = summarise(the_results([a_record()], a_level(server=samples))).levels
    assert level.server is not None
    assert (level.server.first_rss_bytes, level.server.peak_rss_bytes) == (10, 100)
    assert level.server.samples_per_s == pytest.approx(10)
    assert level.server.mean_cores == pytest.approx(1.5)
    assert [(one.name, one.peak_rss_bytes, round(one.cpu_s, 6)) for one in level.server.processes] == [
        ("gateway", 30, 0.2),
        ("engine", 90, 0.1),
    ]


def test_verdicts() -> None:
    good = summarise(the_results([a_record()]))
    failed = summarise(the_results([a_failure(Outcome.OOM)]))
    stopped = summarise(the_results([a_record()], end=End(reason="interrupted")))
    killed = summarise(the_results([a_record()], end=End(reason="failed", message="a client process died")))
    assert [(one.verdict, exit_status(one)) for one in (good, failed, stopped, killed)] == [
        (Verdict.VALID, 0),
        (Verdict.FAILED, 1),
        (Verdict.INTERRUPTED, 130),
        (Verdict.INVALID, 1),
    ]
    assert killed.reasons == ["a client process died"]
    assert failed.reasons == ["no request succeeded: 1 x oom"]


def test_a_repeated_picture_is_not_cold() -> None:
    again = summarise(the_results([a_record(), a_record(kind=Kind.WARMUP, level=-1)]))
    assert (again.verdict, again.reasons) == (Verdict.INVALID, ["declared cold, and 1 pictures had come before"])
    assert summarise(the_results([a_record(), a_record()], cache="warm:1")).verdict is Verdict.VALID


def test_a_cache_that_hits_is_not_cold() -> None:
    counters = {"vlm_image_cache_hits_total": 1.0, "vlm_image_cache_misses_total": 3.0}
    hit = summarise(the_results([a_record()], a_level(counters=counters)))
    assert hit.reasons == [
        "concurrency 2: declared cold, and 25.0% of lookups of picture features were hits"
        "; if an earlier run sent the same pictures, use another --seed"
    ]
    prefixes = {"vllm:prefix_cache_hits_total": 90.0, "vllm:prefix_cache_queries_total": 100.0}
    assert summarise(the_results([a_record()], a_level(counters=prefixes))).verdict is Verdict.VALID


def test_a_run_that_was_killed_has_the_levels_it_began() -> None:
    results = the_results([a_record(), a_record(level=1, start=5000 * MS, pictures=[])], max_concurrency=[2, 4])
    summary = summarise(results)
    assert [(level.name, level.sent) for level in summary.levels] == [("concurrency 2", 1), ("concurrency 4", 1)]


def test_what_is_shown() -> None:
    counters = {"vllm:mm_cache_hits_total": 0.0, "vllm:mm_cache_queries_total": 24.0}
    text = shown(summarise(the_results(a_mix(), a_level(counters=counters), goodput=["ttft:200"])))
    assert "24 unique of 24 pictures sent" in text
    assert "0.0% hits of 24 lookups (vLLM's multimodal inputs)" in text
    assert "unbounded" in text
    assert "24 (60%)" in text
    assert "inband_error" in text


def test_rows_without_a_number_are_left_out() -> None:
    text = shown(summarise(the_results([a_record()])))
    assert not [
        line for line in text.splitlines() if line.startswith("│") and not set(line.split("│")[-2]) - set(" —/")
    ]
    assert "TTFT max" in text
    assert "TTFT p99" not in text


@pytest.mark.parametrize("records", [[], [a_failure(Outcome.NOT_STARTED)], [a_failure(Outcome.CANCELLED)]])
def test_nothing_to_show_is_shown_too(records: list[Record]) -> None:
    assert "FAILED" in shown(summarise(the_results(records)))
    assert shown(summarise(the_results(records, a_level(workers=[]), goodput=["ttft:1"], probe_rate=1)))


def test_where_nothing_succeeded_only_failures_and_notes_are_shown() -> None:
    text = shown(summarise(the_results([a_failure(Outcome.OOM)])))
    assert text.splitlines()[1].strip() == "no request succeeded: 1 x oom"
    assert "failures" in text
    assert "latency" not in text
    assert "note: no cache counters at /metrics" in text
