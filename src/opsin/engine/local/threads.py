"""How many threads the CPU kernels get when nobody says."""

from __future__ import annotations

from pathlib import Path

import torch

from opsin.engine.local.openmp import CPU_MAX, cpu_limit


def default_threads(cpu_max: Path = CPU_MAX) -> int:
    """Torch's choice, which knows ``OMP_NUM_THREADS`` and affinity, but no more than the container's CPU limit.

    Threads beyond the limit are not slower but stopped: all of a step waits for the one whose time is used up. How they
    wait is OpenMP's affair, which spins for a while, see ``openmp``.
    """
    return int(min(torch.get_num_threads(), cpu_limit(cpu_max)))
