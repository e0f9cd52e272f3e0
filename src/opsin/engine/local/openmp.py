"""How OpenMP's threads wait and where they run, which its library reads when torch is imported. Knows no torch."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
"""Of cgroup v2: microseconds of processor time per period, or ``max``; in a container its own."""

_SPIN = {"GOMP_SPINCOUNT": "30000"}
"""How often a thread of GNU OpenMP looks for work before it sleeps: for 1.6 ms, which is longer than nearly all that
lies between two products. By default it is 16 ms, in which it keeps a core from whoever has something to do on it. In a
decode step of eight sequences a thread sleeps 31 times with 10,000 and twice with 30,000: 32.6 and 29.1 ms."""
_WAIT = frozenset({"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"})

_ONE_CORE_EACH = {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores"}
"""While somebody else keeps one of two cores, the kernel puts both threads on the other one, where one that spins keeps
the other from the work that it waits for: the same step takes 117 ms with 10,000, 235 with 30,000, and 91 bound."""
_PLACES = frozenset({"OMP_PROC_BIND", "OMP_PLACES", "OMP_NUM_THREADS", "GOMP_CPU_AFFINITY"})


def settings(
    num_threads: int | None,
    environment: Mapping[str, str],
    num_cores: int | None = None,
    cpu_max: Path = CPU_MAX,
) -> dict[str, str]:
    """Environment variables that ``environment`` lacks; what the operator sets wins.

    Threads are bound where there is one for every core: fewer of them would all take the first cores, as those of the
    next process do. ``num_threads`` None: as many as there are. ``num_cores`` are the machine's own by default.
    """
    cores = num_cores or psutil.cpu_count(logical=False) or math.inf
    fill_all = min(num_threads or math.inf, cpu_limit(cpu_max)) >= cores
    waiting = {} if environment.keys() & _WAIT else _SPIN
    return waiting | (_ONE_CORE_EACH if fill_all and not environment.keys() & _PLACES else {})


def move(cpus: frozenset[int] = frozenset()) -> frozenset[int]:
    """Lets the calling thread, and those that it starts from now on, run on these; returns on which it could before.

    Without any it only says so. OpenMP binds the thread that imports torch, too. Does nothing where there is no such
    thing as affinity.
    """
    if sys.platform != "linux":
        return cpus
    before = frozenset(os.sched_getaffinity(0))
    if cpus and cpus != before:
        os.sched_setaffinity(0, cpus)
    return before


def cpu_limit(cpu_max: Path = CPU_MAX) -> float:
    """Of the container: whole processors, rounded up; infinite where there is no limit or no cgroup v2."""
    try:
        quota, period = cpu_max.read_text().split()
        return math.inf if quota == "max" else max(1, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        return math.inf
