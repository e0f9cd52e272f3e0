"""When numbers are no evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from opsin.bench.health import client_health
from opsin.bench.record import LevelEnd, Record, WorkerHealth
from opsin.bench.throughput import rates
from tests.unit.bench.records import MS, a_level, a_record

SLOW_SERVER = [a_record(t_1=2000 * MS) for _ in range(5)]  # TTFT 1 s: 2 % are more than 10 ms


def problems(records: Sequence[Record], level: LevelEnd) -> list[str]:
    return client_health(records, level, rates(records, level)).problems


def a_worker(**fields: Any) -> WorkerHealth:
    values: dict[str, Any] = {"worker": 0, "wall_s": 2.0, "cpu_s": 0.1, "lags_us": [0] * 100}
    return WorkerHealth(**{**values, **fields})


def test_a_quick_client() -> None:
    assert problems(SLOW_SERVER, a_level()) == []


def test_an_event_loop_that_is_late() -> None:
    level = a_level(workers=[a_worker(), a_worker(lags_us=[0] * 90 + [12_000] * 10)])
    assert problems(SLOW_SERVER, level) == ["the client's event loop was 12.0 ms late (p99); 10.0 ms are allowed"]


def test_a_fast_server_allows_less() -> None:
    level = a_level(workers=[a_worker(lags_us=[3_000] * 100)])
    assert problems(SLOW_SERVER, level) == []
    assert problems([a_record()], level) == ["the client's event loop was 3.0 ms late (p99); 2.0 ms are allowed"]


def test_a_client_at_its_limit() -> None:
    (problem,) = problems(SLOW_SERVER, a_level(workers=[a_worker(cpu_s=1.7)]))
    assert problem.startswith("a client process used 85% of a core")


def test_a_rate_that_was_not_kept() -> None:
    records = [a_record(start=(1000 + n * 100) * MS, t_begin=(1000 + n * 110) * MS, t_1=9000 * MS) for n in range(11)]
    (problem,) = problems(records, a_level(concurrency=None, rate=10.0))
    assert problem == "the client began 10 requests/s, scheduled were 11/s"


def test_answers_that_nobody_counted() -> None:
    records = [a_record(n_out=None, t_1=2000 * MS), *SLOW_SERVER]
    assert problems(records, a_level()) == ["the server counted no output tokens for 1 of 6 answers"]


def test_pictures_that_nobody_looked_at() -> None:
    records = [a_record(n_visual=0, t_1=2000 * MS), *SLOW_SERVER]
    (problem,) = problems(records, a_level())
    assert problem.startswith("1 requests with pictures cost no visual tokens")
    assert problems([a_record(n_visual=0, pictures=[], t_1=2000 * MS)], a_level()) == []


@pytest.mark.parametrize("workers", [[], [a_worker(lags_us=[], wall_s=0.0)]])
def test_a_level_without_samples(workers: list[WorkerHealth]) -> None:
    assert problems(SLOW_SERVER, a_level(workers=workers)) == []
