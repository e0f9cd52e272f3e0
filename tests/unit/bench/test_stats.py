"""Percentiles, intervals and shares against values known from elsewhere."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsin.bench.stats import Interval, distribution, order_interval, percentile, smallest_sample, wilson


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.95, 0.99, 1.0]))
def test_percentiles_are_numpys_default(values: list[float], q: float) -> None:
    assert percentile(sorted(values), q) == pytest.approx(float(np.quantile(values, q)), abs=1e-6)


def test_percentiles_with_infinities() -> None:
    assert percentile([1.0, 2.0, math.inf], 0.5) == 2.0
    assert percentile([1.0, math.inf, math.inf], 0.5) == math.inf
    assert percentile([1.0, math.inf], 0.5) == math.inf


@pytest.mark.parametrize(("q", "value", "interval"), [(0.5, 5, 6), (0.9, 29, 36), (0.95, 59, 72), (0.99, 299, 368)])
def test_what_a_sample_may_tell(q: float, value: int, interval: int) -> None:
    """n >= ln 0.05 / ln q for the value; David and Nagaraja's table for the two-sided interval."""
    assert smallest_sample(q) == value
    assert distribution(range(value - 1)).at(q).value is None
    assert distribution(range(value)).at(q).value is not None
    assert distribution(range(interval - 1)).at(q).interval is None
    assert distribution(range(interval)).at(q).interval is not None


def test_ranks_of_the_medians_interval() -> None:
    assert order_interval(range(1, 101), 0.5) == Interval(40, 61)  # Conover, Practical Nonparametric Statistics


@pytest.mark.parametrize("q", [0.5, 0.95])
def test_the_interval_holds_the_quantile_as_often_as_it_says(q: float) -> None:
    rng = random.Random(1)
    holds = 0
    for _ in range(1000):
        interval = order_interval(sorted(rng.random() for _ in range(200)), q)
        assert interval is not None
        holds += interval.low <= q <= interval.high
    assert holds >= 940  # 95 % or more; 1000 trials deviate by 0.7 %


def test_a_distribution_of_nothing() -> None:
    told = distribution([], n_undefined=3)
    assert (told.n, told.n_undefined, told.mean, told.maximum) == (0, 3, None, None)
    assert all(quantile.value is None for quantile in told.quantiles)


def test_failures_leave_the_tail_unbounded() -> None:
    told = distribution([1.0] * 90 + [math.inf] * 10)
    assert told.at(0.5).value == 1.0
    assert told.at(0.95).unbounded
    assert told.mean is None


def test_wilson() -> None:
    told = wilson(24, 40)
    assert told is not None
    assert (round(told.low, 4), round(told.high, 4)) == (0.4460, 0.7365)
    assert wilson(0, 0) is None
    nothing = wilson(0, 10)
    assert nothing is not None
    assert (nothing.low, round(nothing.high, 4)) == (0.0, 0.2775)
