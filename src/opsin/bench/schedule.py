"""When the requests of an open loop arrive: absolute times, made before the clock starts. Pure.

Poisson gaps are used as drawn. Stretching them to hit count / rate exactly, as some tools do, makes the arrivals more
regular than Poisson's; here the rate that was really scheduled is printed beside the asked one.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from opsin.bench.config import DEFAULT_NUM_PROMPTS, Arrival, BenchConfig


def schedules(config: BenchConfig) -> list[list[int | None]]:
    """Per level, when each request is due, in nanoseconds after the level's begin; None: when another one is done."""
    if not config.is_open_loop:
        return [[None] * (config.num_prompts or DEFAULT_NUM_PROMPTS) for _ in config.levels]
    count = config.num_prompts or (DEFAULT_NUM_PROMPTS if config.duration_s is None else None)
    return [
        [*arrivals(rate, config.arrival, rng, count=count, duration_s=config.duration_s)]
        for level, rate in enumerate(config.levels)
        for rng in (random.Random(f"{config.seed} arrivals {level}"),)
    ]


def arrivals(
    rate: float, arrival: Arrival, rng: random.Random, *, count: int | None, duration_s: float | None
) -> list[int]:
    """Nanoseconds after the start of the level, in order: ``count`` of them, those within ``duration_s``, or both.

    The first request of a constant load comes at once; that of a Poisson load after a gap like any other.
    """
    assert count is not None or duration_s is not None, "an endless load"
    times = itertools.islice(_times(rate, arrival, rng), count)
    if duration_s is not None:
        times = itertools.takewhile(lambda time_s: time_s < duration_s, times)
    return [round(time_s * 1e9) for time_s in times]


def _times(rate: float, arrival: Arrival, rng: random.Random) -> Iterator[float]:
    match arrival:
        case Arrival.CONSTANT:
            return (number / rate for number in itertools.count())
        case Arrival.POISSON:
            return itertools.accumulate(rng.expovariate(rate) for _ in itertools.count())
