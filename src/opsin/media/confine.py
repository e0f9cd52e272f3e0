"""What a worker takes away from itself before it sees the first stranger's picture. Knows no pictures.

Here is also the place for what takes away network and system calls (unshare, seccomp), once it is decided.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def confine(memory_bytes: int) -> None:
    """Limits memory to ``memory_bytes`` more than now, forbids core dumps, and ties this process to its parent's life.

    Memory and the parent's death signal are Linux only: macOS does not enforce RLIMIT_AS, and the end of the pipe is
    what ends an orphan there. Termination signals are ignored, because a supervisor sends them to all processes of a
    service at once and the parent still has requests to finish.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        limit = _address_space_bytes() + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def allow_cpu_s(seconds: int) -> None:
    """Lets this process use ``seconds`` of CPU from now, then the kernel ends it (SIGXCPU)."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime) + seconds + 1, hard))


def _address_space_bytes() -> int:
    """Virtual size of this process, see proc_pid_statm(5)."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
