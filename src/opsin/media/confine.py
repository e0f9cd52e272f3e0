"""What a worker takes away from itself before it sees the first stranger's picture. Knows no pictures."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import stat
import sys
from contextlib import suppress
from enum import IntEnum
from pathlib import Path

from opsin.media import seccomp

_NICENESS = 5
"""A third of the processor's time of whoever competes: answering goes before decoding, and decoding does not starve."""
_LOG_BYTES = 16 * 2**20
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_CLONE_NEWUSER, _CLONE_NEWIPC, _CLONE_NEWNET = 0x1000_0000, 0x0800_0000, 0x4000_0000  # linux/sched.h


class Level(IntEnum):
    """How far a worker is confined; each level has all of the levels before it."""

    PROCESS = 0
    """A process of its own, with no secret of the server, killed at its deadline."""
    LIMITS = 1
    """Memory, processor time, no new descriptors or files, enforced by the kernel."""
    SECCOMP = 2
    """Only the system calls that decoding needs: no network, no files, no programs, no processes."""
    NAMESPACES = 3
    """A network without any interface, should the filter have a hole."""

    @property
    def label(self) -> str:
        """Its name as logs and ``opsin doctor`` have it."""
        return self.name.lower()


def confine(memory_bytes: int, *, threads: bool) -> Level:
    """Gives up all that decoding does not need, and ties this process to its parent's life; says how far that went.

    ``memory_bytes``: address space beyond what is in use now. ``threads``: a decoder starts some. Termination signals
    are ignored, because a supervisor sends them to all processes of a service at once and the parent still has requests
    to finish.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _step_back()
    if sys.platform != "linux":
        _forbid_growth(threads=threads)
        return Level.PROCESS  # macOS does not enforce RLIMIT_AS; the end of the socket ends an orphan there
    libc = ctypes.CDLL(None)
    has_namespaces = libc.unshare(_CLONE_NEWUSER | _CLONE_NEWIPC | _CLONE_NEWNET) == 0
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _limit(resource.RLIMIT_AS, _address_space_bytes() + memory_bytes)
    _forbid_growth(threads=threads)
    try:
        seccomp.install(threads=threads)
    except OSError:
        return Level.LIMITS
    _prove()
    return Level.NAMESPACES if has_namespaces else Level.SECCOMP


def allow_cpu_s(seconds: int) -> None:
    """Lets this process use ``seconds`` of CPU from now, then the kernel ends it (SIGXCPU)."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime) + seconds + 1, hard))


def _step_back() -> None:
    """Lowers this process' priority; where sessions are scheduled as groups, as on desktops, that of its session."""
    os.nice(_NICENESS)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_NICENESS))


def _forbid_growth(*, threads: bool) -> None:
    """No core dumps, no further descriptors, no files; no further processes, unless threads count as such."""
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, 0)  # those that are open stay open
    _limit(resource.RLIMIT_FSIZE, _log_end())
    if not threads:
        _limit(resource.RLIMIT_NPROC, 0)


def _limit(kind: int, value: int) -> None:
    resource.setrlimit(kind, (value, value))


def _log_end() -> int:
    """Where a log that is a file ends for this process. Whoever takes it over cannot fill the disk."""
    log = os.fstat(sys.stderr.fileno())
    return log.st_size + _LOG_BYTES if stat.S_ISREG(log.st_mode) else 0


def _prove() -> None:
    """Raises RuntimeError when the filter that was installed does not filter."""
    try:
        descriptor = os.open(os.devnull, os.O_RDONLY)
    except PermissionError:
        return
    os.close(descriptor)
    raise RuntimeError("the filter on system calls does not work")


def _address_space_bytes() -> int:
    """Virtual size of this process, see proc_pid_statm(5)."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
