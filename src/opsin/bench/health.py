"""Whether a level's numbers are evidence: was the client quick enough, and did it measure what was declared? Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from opsin.bench.metrics import is_ok, ttft
from opsin.bench.record import LevelEnd, Record, WorkerHealth
from opsin.bench.stats import percentile
from opsin.bench.throughput import Rates

_MAX_LAG_MS = 10.0
_MAX_LAG_OF_TTFT = 0.02
_MIN_LAG_LIMIT_MS = 0.5
"""No model answers so fast that less would matter."""
_MAX_CPU = 0.8
_MIN_ACHIEVED = 0.98
_MAX_UNCOUNTED = 0.01


class ClientHealth(msgspec.Struct):
    """The worst of the client's processes. ``problems`` make the run invalid."""

    lag_p99_ms: float
    lag_limit_ms: float
    cpu_of_a_core: float
    problems: list[str]


def client_health(records: Sequence[Record], level: LevelEnd, achieved: Rates) -> ClientHealth:
    """Of one level's load."""
    lag = max((_lag_p99_ms(worker) for worker in level.workers), default=0.0)
    cpu = max((worker.cpu_s / worker.wall_s for worker in level.workers if worker.wall_s), default=0.0)
    times = sorted(time for record in records if is_ok(record) and (time := ttft(record)) is not None)
    of_ttft = _MAX_LAG_OF_TTFT * percentile(times, 0.5) if times else _MAX_LAG_MS
    limit = min(_MAX_LAG_MS, max(_MIN_LAG_LIMIT_MS, of_ttft))
    problems = list[str]()
    if lag > limit:
        problems.append(f"the client's event loop was {lag:.1f} ms late (p99); {limit:.1f} ms are allowed")
    if cpu > _MAX_CPU:
        problems.append(f"a client process used {cpu:.0%} of a core; add --workers, or spread the load over machines")
    problems += _of_rate(achieved)
    problems += _of_tokens(records)
    return ClientHealth(lag, limit, cpu, problems)


def _lag_p99_ms(worker: WorkerHealth) -> float:
    return percentile(sorted(worker.lags_us), 0.99) / 1e3 if worker.lags_us else 0.0


def _of_rate(achieved: Rates) -> list[str]:
    scheduled, sent = achieved.scheduled_rate, achieved.achieved_rate
    if scheduled is None or sent is None or sent >= _MIN_ACHIEVED * scheduled:
        return []
    return [f"the client began {sent:.3g} requests/s, scheduled were {scheduled:.3g}/s"]


def _of_tokens(records: Sequence[Record]) -> list[str]:
    problems = list[str]()
    successes = [record for record in records if is_ok(record)]
    uncounted = sum(record.src_n == "none" for record in successes)
    if uncounted > _MAX_UNCOUNTED * len(successes):
        problems.append(f"the server counted no output tokens for {uncounted} of {len(successes)} answers")
    blind = sum(record.n_visual == 0 for record in successes if record.pictures)
    if blind:
        problems.append(f"{blind} requests with pictures cost no visual tokens: the server does not look at them")
    return problems
