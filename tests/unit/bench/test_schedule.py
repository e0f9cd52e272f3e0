"""Arrivals are absolute, seeded, and as irregular as they say."""

from __future__ import annotations

import random
from statistics import mean, pvariance

from opsin.bench.config import Arrival, checked
from opsin.bench.schedule import arrivals, schedules


def test_constant_arrivals() -> None:
    due = arrivals(4, Arrival.CONSTANT, random.Random(0), count=5, duration_s=None)
    assert due == [0, 250_000_000, 500_000_000, 750_000_000, 1_000_000_000]


def test_a_duration_and_a_number_both_limit() -> None:
    assert len(arrivals(10, Arrival.CONSTANT, random.Random(0), count=None, duration_s=2)) == 20
    assert len(arrivals(10, Arrival.CONSTANT, random.Random(0), count=5, duration_s=2)) == 5
    assert len(arrivals(10, Arrival.CONSTANT, random.Random(0), count=50, duration_s=2)) == 20


def test_poisson_gaps_have_the_mean_and_the_variance_of_poisson() -> None:
    due = arrivals(100, Arrival.POISSON, random.Random(0), count=20_000, duration_s=None)
    gaps = [(late - early) / 1e9 for early, late in zip([0, *due], due, strict=False)]
    assert abs(mean(gaps) - 0.01) < 0.0003
    assert abs(pvariance(gaps) - 0.0001) < 0.00001
    assert due[-1] != 200 * 10**9  # not stretched to hit the rate exactly


def test_the_seed_decides() -> None:
    def of(seed: int) -> list[list[int | None]]:
        return schedules(checked({"url": "http://h", "request_rate": [5, 10], "seed": seed, "num_prompts": 9}))

    assert of(1) == of(1)
    assert of(1) != of(2)
    assert [len(level) for level in of(1)] == [9, 9]


def test_a_closed_loop_has_no_times() -> None:
    assert schedules(checked({"url": "http://h", "max_concurrency": [1, 2], "num_prompts": 3})) == [[None] * 3] * 2
