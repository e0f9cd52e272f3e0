"""Each quantity of a record, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from opsin.bench import metrics
from opsin.bench.config import Slo
from opsin.bench.record import Outcome
from tests.unit.bench.records import MS, a_failure, a_record


def test_times_of_a_whole_answer() -> None:
    record = a_record(t_sched=990 * MS, t_begin=993 * MS, t_o=1120 * MS, connect_ns=4 * MS)
    assert metrics.ttft(record) == 100
    assert metrics.ttft_sched(record) == 110
    assert metrics.ttft_after_upload(record) == 98
    assert metrics.ttfo(record) == 120
    assert metrics.upload(record) == 2
    assert metrics.connect(record) == 4
    assert metrics.schedule_delay(record) == 3
    assert metrics.e2e(record) == 140
    assert metrics.e2e_sched(record) == 150
    assert metrics.stream_close(record) == 190
    assert metrics.tpot(record) == 10
    assert metrics.gaps(record) == [10, 10, 10, 10]
    assert metrics.longest_gap(record) == 10
    assert metrics.tokens_per_event(record) == 1
    assert metrics.visual_per_image(record) == 64
    assert metrics.megapixels(record) == 512 * 512 / 1e6


def test_what_is_undefined() -> None:
    failed = a_failure(Outcome.SHED)
    for metric in (
        metrics.ttft,
        metrics.e2e,
        metrics.tpot,
        metrics.longest_gap,
        metrics.tokens_per_event,
        metrics.connect,
    ):
        assert metric(failed) is None
    assert metrics.time_to_failure(failed) == 5
    assert metrics.time_to_failure(a_failure(Outcome.CONNECT, t_send0=None, t_end=1007 * MS)) == 7


def test_the_stream_of_which_four_tools_report_four_speeds() -> None:
    """40 tokens in 10 chunks from 150 to 330 ms, usage at 630 ms: 180 ms are for 39 later tokens, or 36 if counted."""
    times = [150 * MS + number * 20 * MS for number in range(10)]
    values: dict[str, Any] = {"start": 0, "t_1": times[0], "t_L": times[-1], "t_done": 630 * MS, "n_out": 40}
    plain = a_record(**values, events=[(time, None) for time in times])
    counted = a_record(**values, events=[(time, 4) for time in times])
    assert metrics.tpot(plain) == pytest.approx(180 / 39)
    assert metrics.tpot(counted) == 5
    assert metrics.tokens_per_event(plain) == 4
    assert metrics.gaps(plain) == [20] * 9
    assert (metrics.e2e(plain), metrics.stream_close(plain)) == (330, 630)


@pytest.mark.parametrize(
    ("n_out", "events"), [(1, [(1100 * MS, None)]), (None, [(1100 * MS, None)]), (4, [(1100 * MS, 4)])]
)
def test_tpot_needs_a_second_token_at_another_time(n_out: int | None, events: list[tuple[int, int | None]]) -> None:
    assert metrics.tpot(a_record(n_out=n_out, events=events)) is None


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({"timeline_ms": {"prefill_ms": 1, "vision_encode_ms": 2}}, "encoded"),
        ({"timeline_ms": {"prefill_ms": 1}}, "all cached"),
        ({"timeline_ms": {"prefill_ms": 1, "upstream_ms": 2}}, None),  # an upstream's prefill may hold its encoder
        ({"timeline_ms": {"total_ms": 1}}, None),  # an engine that does not tell its stages
        ({"n_cached": 80}, "prefix cached"),
        ({"n_cached": 16}, None),
        ({"n_cached": 80, "n_visual": None}, None),
        ({}, None),
        ({"timeline_ms": {"prefill_ms": 1}, "pictures": []}, None),
    ],
)
def test_cache_outcomes_are_told_or_absent(fields: dict[str, Any], outcome: str | None) -> None:
    assert metrics.cache_outcome(a_record(**fields)) == outcome


@pytest.mark.parametrize(
    ("metric", "limit", "closed", "open_loop"),
    [("ttft", 105, True, False), ("e2el", 145, True, False), ("tpot", 10, True, True), ("tpot", 9, False, False)],
)
def test_limits_count_from_the_intended_start_in_an_open_loop(
    metric: str, limit: float, closed: bool, open_loop: bool
) -> None:
    record = a_record(t_sched=990 * MS)
    slo = Slo.model_validate({"metric": metric, "limit_ms": limit})
    assert metrics.keeps(record, slo, open_loop=False) is closed
    assert metrics.keeps(record, slo, open_loop=True) is open_loop


def test_a_limit_that_does_not_apply() -> None:
    assert metrics.keeps(a_record(n_out=1), Slo(metric="tpot", limit_ms=1), open_loop=False) is None
