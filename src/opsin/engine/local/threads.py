"""How many threads the CPU kernels get when nobody says."""

from __future__ import annotations

import math
from pathlib import Path

import torch

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
"""Of cgroup v2: microseconds of processor time per period, or ``max``; in a container its own."""


def default_threads(cpu_max: Path = CPU_MAX) -> int:
    """Torch's choice, which knows ``OMP_NUM_THREADS`` and affinity, but no more than the container's CPU limit.

    Threads beyond the limit are not slower but stopped: all of a step waits for the one whose time is used up. How they
    wait is OpenMP's affair, which spins for a while; the parent of this process says for how long.
    """
    return int(min(torch.get_num_threads(), _limit(cpu_max)))


def _limit(cpu_max: Path) -> float:
    """Whole processors, rounded up; infinite where there is no limit or no cgroup v2."""
    try:
        quota, period = cpu_max.read_text().split()
        return math.inf if quota == "max" else max(1, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        return math.inf
