from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from opsin.engine.local import openmp
from opsin.engine.local.openmp import move, settings

BOUND = {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores"}


def _bound(num_threads: int | None, environment: dict[str, str], cpu_max: Path, told: str = "max 100000") -> bool:
    cpu_max.write_text(told)
    found = settings(num_threads, environment, 4, cpu_max)
    assert {name: found[name] for name in BOUND if name in found} in ({}, BOUND)
    return "OMP_PROC_BIND" in found


@pytest.mark.parametrize(
    ("num_threads", "told", "expected"),
    [
        (None, "max 100000", True), (4, "max 100000", True), (8, "max 100000", True), (3, "max 100000", False),
        (None, "200000 100000", False), (8, "200000 100000", False), (None, "400000 100000", True),
    ],
)  # fmt: skip
def test_threads_are_bound_where_there_is_one_for_every_core(
    num_threads: int | None, told: str, expected: bool, tmp_path: Path
):
    assert _bound(num_threads, {}, tmp_path / "cpu.max", told) is expected


@pytest.mark.parametrize("name", ["OMP_PROC_BIND", "OMP_PLACES", "OMP_NUM_THREADS", "GOMP_CPU_AFFINITY"])
def test_an_operator_who_says_where_they_run_is_left_alone(name: str, tmp_path: Path):
    assert not _bound(None, {name: "1"}, tmp_path / "cpu.max")


def test_an_operator_who_says_how_they_wait_is_left_alone():
    assert settings(1, {"OTHER": "1"}, 4) == {"GOMP_SPINCOUNT": "30000"}
    assert settings(1, {"GOMP_SPINCOUNT": "5"}, 4) == {}
    assert settings(1, {"OMP_WAIT_POLICY": "active"}, 4) == {}


def test_where_nobody_knows_the_cores_nothing_is_bound(monkeypatch: pytest.MonkeyPatch):
    def unknown(logical: bool = True) -> None:
        return None

    monkeypatch.setattr(openmp.psutil, "cpu_count", unknown)
    assert settings(64, {}) == {"GOMP_SPINCOUNT": "30000"}


@pytest.mark.skipif(sys.platform != "linux", reason="no affinity of threads")
def test_a_thread_that_moves_is_told_where_it_was():
    found: list[frozenset[int]] = []

    def work() -> None:
        everywhere = move()
        one = frozenset({min(everywhere)})
        found.extend((everywhere, move(one), frozenset(os.sched_getaffinity(0)), move(everywhere), move(everywhere)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    everywhere, before, during, one, after = found
    assert before == everywhere == after
    assert during == one == frozenset({min(everywhere)})
