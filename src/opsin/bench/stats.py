"""Order statistics and proportions, with what a sample of a given size allows to say. Knows no requests.

Percentiles are of type 7 (linear between order statistics, as numpy and R have it). One is told only if the sample is
large enough to hold, with 95 % confidence, a value beyond it: n >= ln 0.05 / ln q, so 29 for p90, 59 for p95, 299 for
p99. Its interval is free of any assumption on the distribution: two order statistics whose ranks enclose the quantile
with at least 95 %, by the binomial law; for p99 that needs 368 values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

_CONFIDENCE = 0.95
_Z95 = 1.959963984540054  # the 97.5 % quantile of the normal law


class Interval(msgspec.Struct, frozen=True):
    """95 % confidence."""

    low: float
    high: float


class Quantile(msgspec.Struct, frozen=True):
    """``value`` is None when the sample is too small to tell it, or ``unbounded``; ``interval`` needs a larger one."""

    q: float
    value: float | None
    interval: Interval | None
    unbounded: bool = False  # it lies among failures, which count as infinitely late


class Distribution(msgspec.Struct, frozen=True):
    """What is told of one quantity. ``n`` values were defined; ``n_undefined`` requests had none."""

    n: int
    n_undefined: int
    mean: float | None
    maximum: float | None
    quantiles: tuple[Quantile, ...]

    def at(self, q: float) -> Quantile:
        """One of the quantiles that were asked for."""
        return next(one for one in self.quantiles if one.q == q)


QUANTILES = (0.5, 0.9, 0.95, 0.99)


def smallest_sample(q: float) -> int:
    """Values needed to tell a quantile: below this the largest value is as likely under it as over it."""
    tail = max(q, 1 - q)
    return math.ceil(math.log(1 - _CONFIDENCE) / math.log(tail))


def percentile(ordered: Sequence[float], q: float) -> float:
    """Type 7 of sorted values, at least one."""
    position = (len(ordered) - 1) * q
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    share = position - below
    if share == 0:
        return ordered[below]  # inf times 0 is no number
    return ordered[below] * (1 - share) + ordered[above] * share


def order_interval(ordered: Sequence[float], q: float) -> Interval | None:
    """The narrowest symmetric-tailed pair of order statistics around a quantile; None when the sample is too small."""
    n = len(ordered)
    tail = (1 - _CONFIDENCE) / 2
    cumulative = 0.0
    low: int | None = None
    for k in range(n + 1):  # k values lie under the quantile with the binomial probability
        cumulative += _binomial(n, k, q)
        if low is None and cumulative > tail:
            if k == 0:
                return None  # the smallest value may lie above the quantile
            low = k - 1  # 0-based: P(fewer than k values under it) <= tail
        if cumulative >= 1 - tail:
            return None if low is None or k >= n else Interval(ordered[low], ordered[k])
    return None


def _binomial(n: int, k: int, q: float) -> float:
    choose = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(choose + k * math.log(q) + (n - k) * math.log(1 - q))


def distribution(values: Sequence[float], *, n_undefined: int = 0) -> Distribution:
    """All that is told of a sample, which may be empty, and may hold infinities."""
    ordered = sorted(values)
    n = len(ordered)
    is_finite = n > 0 and ordered[-1] != math.inf
    return Distribution(
        n=n,
        n_undefined=n_undefined,
        mean=math.fsum(ordered) / n if is_finite else None,
        maximum=ordered[-1] if is_finite else None,
        quantiles=tuple(_quantile(ordered, q) for q in QUANTILES),
    )


def _quantile(ordered: Sequence[float], q: float) -> Quantile:
    if len(ordered) < smallest_sample(q):
        return Quantile(q, None, None)
    value = percentile(ordered, q)
    if value == math.inf:
        return Quantile(q, None, None, unbounded=True)
    interval = order_interval(ordered, q)
    return Quantile(q, value, None if interval is None or interval.high == math.inf else interval)


def wilson(successes: int, n: int) -> Interval | None:
    """Wilson's 95 % interval of a share (Wilson 1927); None without trials."""
    if n == 0:
        return None
    share, z2 = successes / n, _Z95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z95 * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return Interval(max(0.0, centre - half), min(1.0, centre + half))
