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
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
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


class Confinement:
    """What this process may still use, and how far it is confined."""

    def __init__(self, level: Level, memory: _Memory | None) -> None:
        self.level = level
        self._memory = memory

    def allow(self, *, cpu_s: int, memory_bytes: int) -> None:
        """For one task, from now: ``cpu_s`` of processor time, then the kernel ends this process (SIGXCPU), and so much
        more address space, then allocations fail."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        _set_soft(resource.RLIMIT_CPU, int(usage.ru_utime + usage.ru_stime) + cpu_s + 1)
        if self._memory:
            _set_soft(resource.RLIMIT_AS, min(self._memory.used_bytes() + memory_bytes, self._memory.max_bytes))


class _Memory:
    """The address space of this process, told by the kernel through a file that was opened in time."""

    def __init__(self, more_bytes: int) -> None:
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        self.max_bytes = self.used_bytes() + more_bytes

    def used_bytes(self) -> int:
        """See proc_pid_statm(5)."""
        return int(os.pread(self._statm, 32, 0).split()[0]) * _PAGE_BYTES


def confine(memory_bytes: int, *, threads: bool) -> Confinement:
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
        # macOS does not enforce RLIMIT_AS, and the end of the socket is what ends an orphan there.
        return Confinement(Level.PROCESS, None)
    libc = ctypes.CDLL(None)
    has_namespaces = libc.unshare(_CLONE_NEWUSER | _CLONE_NEWIPC | _CLONE_NEWNET) == 0
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    memory = _Memory(memory_bytes)
    _limit(resource.RLIMIT_AS, memory.max_bytes)
    _forbid_growth(threads=threads)
    try:
        seccomp.install(threads=threads)
    except OSError:
        return Confinement(Level.LIMITS, memory)
    _prove()
    return Confinement(Level.NAMESPACES if has_namespaces else Level.SECCOMP, memory)


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


def _set_soft(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, hard))


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
