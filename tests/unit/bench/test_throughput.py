"""Rates over two windows, by hand."""

from __future__ import annotations

import pytest

from opsin.bench.record import Outcome
from opsin.bench.throughput import rates
from tests.unit.bench.records import MS, a_failure, a_level, a_record


def test_two_windows() -> None:
    """Requests at 1.0 and 1.5 s, each complete 140 ms and over 190 ms later; the level begins at 1 s."""
    told = rates([a_record(start=1000 * MS), a_record(start=1500 * MS)], a_level())
    assert told.steady is not None
    assert told.steady.window_s == 0.5
    assert (told.steady.requests, told.steady.images, told.steady.output_tokens) == (2, 2, 10)
    assert (told.steady.input_tokens, told.steady.visual_tokens) == (200, 128)
    assert told.whole.window_s == 0.69
    assert told.whole.requests == pytest.approx(2 / 0.69)
    assert told.whole.body_megabytes == pytest.approx(0.267 / 0.69)
    assert told.in_flight == pytest.approx(190 / 500)


def test_output_tokens_count_where_they_come() -> None:
    """The second request comes at 1.12 s, when the first, with events from 1.1 to 1.14 s, has had 3 of 5."""
    told = rates([a_record(start=1000 * MS), a_record(start=1120 * MS)], a_level())
    assert told.steady is not None
    assert told.steady.requests == 0
    assert told.steady.output_tokens == pytest.approx(3 / 0.12)


def test_counted_tokens_are_not_spread() -> None:
    events = [(1100 * MS, 4), (1140 * MS, 1)]
    told = rates([a_record(events=events), a_record(start=1120 * MS)], a_level())
    assert told.steady is not None
    assert told.steady.output_tokens == pytest.approx(4 / 0.12)


def test_failures_bring_nothing_and_do_not_raise_rates() -> None:
    told = rates([a_record(), *(a_failure(Outcome.SHED, start=1100 * MS) for _ in range(50))], a_level())
    assert told.whole.requests == pytest.approx(1 / 0.19)


def test_all_at_once_has_no_steady_window() -> None:
    assert rates([a_record(), a_record()], a_level()).steady is None


def test_nothing() -> None:
    told = rates([], a_level())
    assert (told.steady, told.whole.requests, told.whole.output_tokens) == (None, 0, None)


def test_rates_of_an_open_loop() -> None:
    level = a_level(concurrency=None, rate=10.0)
    records = [a_record(start=(1000 + number * 100) * MS) for number in range(11)]
    told = rates(records, level)
    assert (told.scheduled_rate, told.achieved_rate) == (11, 11)
    late = [a_record(start=(1000 + number * 100) * MS, t_begin=(1000 + number * 200) * MS) for number in range(11)]
    assert rates(late, level).achieved_rate == 5.5
