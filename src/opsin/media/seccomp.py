"""A filter on the system calls of this process (Linux): what a decoder needs, and nothing else. Needs no privilege.

Three fates. What decoders need is allowed. What only somebody who took the process over would call (another program, a
process, a socket, another process' memory, a new namespace, kernel code) kills the process, so that the parent sees it
(SIGSYS). Everything else fails with EPERM: a libc call that nobody foresaw is then an error in one picture and not a
dead worker. Memory can never become executable, so code that a picture brings along cannot run. See seccomp(2).
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_ALLOWED = {  # name: number on x86_64, number on aarch64
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "fstat": (5, 80),
    "lseek": (8, 62),
    "munmap": (11, 215),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "pread64": (17, 67),
    "sched_yield": (24, 124),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "getpid": (39, 172),
    "sendto": (44, 206),
    "recvfrom": (45, 207),
    "exit": (60, 93),
    "gettimeofday": (96, 169),
    "getrusage": (98, 165),
    "sigaltstack": (131, 132),
    "gettid": (186, 178),
    "futex": (202, 98),
    "sched_getaffinity": (204, 123),
    "restart_syscall": (219, 128),
    "clock_gettime": (228, 113),
    "exit_group": (231, 94),
    "set_robust_list": (273, 99),
    "getrandom": (318, 278),
    "rseq": (334, 293),
}
_DEADLY = {
    "socket": (41, 198),
    "connect": (42, 203),
    "accept": (43, 202),
    "sendmsg": (46, 211),
    "recvmsg": (47, 212),
    "bind": (49, 200),
    "listen": (50, 201),
    "socketpair": (53, 199),
    "execve": (59, 221),
    "execveat": (322, 281),
    "kill": (62, 129),
    "tkill": (200, 130),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40),
    "unshare": (272, 97),
    "setns": (308, 268),
    "memfd_create": (319, 279),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "keyctl": (250, 219),
    "io_uring_setup": (425, 425),
}
_DEADLY_ON_X86_64 = {"fork": 57, "vfork": 58}
_MMAP, _MPROTECT, _CLONE, _CLONE3, _PRLIMIT = (9, 222), (10, 226), (56, 220), (435, 435), (302, 261)
_SECCOMP = {"x86_64": 317, "aarch64": 277}

_PROT_EXEC = 0x4
_CLONE_THREAD = 0x0001_0000
_CLONE_NEW_ANYTHING = 0x7E02_0000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_RLIMIT_CPU, _RLIMIT_AS = 0, 9
_X32_BIT = 0x4000_0000

_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # linux/bpf_common.h
_INSTRUCTION = struct.Struct("=HBBI")
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16  # struct seccomp_data

_ALLOW, _ERRNO, _KILL = 0x7FFF_0000, 0x0005_0000, 0x8000_0000  # linux/seccomp.h
_DENY = _ERRNO | errno.EPERM
_UNKNOWN = _ERRNO | errno.ENOSYS

_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER = 1
_ALL_THREADS = 1  # SECCOMP_FILTER_FLAG_TSYNC

_Block = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class _Machine:
    """Which column of the tables holds, and what the kernel calls this architecture (linux/audit.h)."""

    name: str
    column: int
    arch: int


_MACHINES = {
    "x86_64": _Machine("x86_64", 0, 0xC000_003E),
    "aarch64": _Machine("aarch64", 1, 0xC000_00B7),
}


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def install(*, threads: bool) -> None:
    """Filters the system calls of this process from now on; ``threads``: it may start some.

    Raises:
        OSError: this kernel, or whoever confined this process before, has no filters, or the machine is another one.
    """
    name = platform.machine()
    if name not in _MACHINES or struct.calcsize("P") != 8:
        raise OSError(errno.ENOSYS, "no table of system calls for this machine")
    code = program(name, threads=threads)
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    filters = _Program(len(code) // _INSTRUCTION.size, code)
    _check(libc.syscall(_SECCOMP[name], _SET_MODE_FILTER, _ALL_THREADS, ctypes.byref(filters)))


def program(machine: str, *, threads: bool) -> bytes:
    """The filter as BPF for ``x86_64`` or ``aarch64``."""
    return b"".join(b"".join(block) for block in _blocks(_MACHINES[machine], threads=threads))


def _blocks(machine: _Machine, *, threads: bool) -> Iterator[_Block]:
    yield (_load(_ARCH_AT), _if(_IF_EQUAL, machine.arch, skip_unless=0, skip_if=1), _return(_KILL))
    yield (_load(_NUMBER_AT),)
    if machine.name == "x86_64":
        yield (_if(_IF_AT_LEAST, _X32_BIT, skip_unless=1), _return(_KILL))  # the same calls under other numbers
        for number in _DEADLY_ON_X86_64.values():
            yield _call(number, _return(_KILL))
    for numbers in _ALLOWED.values():
        yield _call(numbers[machine.column], _return(_ALLOW))
    for numbers in _DEADLY.values():
        yield _call(numbers[machine.column], _return(_KILL))
    for numbers in (_MMAP, _MPROTECT):
        yield _call(numbers[machine.column], *_unless_executable())
    yield _call(_PRLIMIT[machine.column], *_own_limits())
    yield _call(_CLONE[machine.column], *(_only_threads() if threads else (_return(_KILL),)))
    # Its flags lie in memory, where no filter can see them; libc falls back to clone.
    yield _call(_CLONE3[machine.column], _return(_UNKNOWN if threads else _KILL))
    yield (_return(_DENY),)


def _call(number: int, *fate: bytes) -> _Block:
    """``fate`` for one system call; it has to end in returns."""
    return _if(_IF_EQUAL, number, skip_unless=len(fate)), *fate


def _unless_executable() -> _Block:
    return (_load_argument(2), _if(_IF_ANY_BIT, _PROT_EXEC, skip_unless=1), _return(_DENY), _return(_ALLOW))


def _own_limits() -> _Block:
    """The worker sets two limits anew for each task; its own, which are those of process 0."""
    return (
        _load_argument(0),
        _if(_IF_EQUAL, 0, skip_unless=4),
        _load_argument(1),
        _if(_IF_EQUAL, _RLIMIT_CPU, skip_unless=0, skip_if=1),
        _if(_IF_EQUAL, _RLIMIT_AS, skip_unless=1),
        _return(_ALLOW),
        _return(_DENY),
    )


def _only_threads() -> _Block:
    return (
        _load_argument(0),
        _if(_IF_ANY_BIT, _CLONE_NEW_ANYTHING, skip_unless=1),
        _return(_KILL),
        _if(_IF_ANY_BIT, _CLONE_THREAD, skip_unless=1),
        _return(_ALLOW),
        _return(_KILL),
    )


def _load(offset: int) -> bytes:
    return _INSTRUCTION.pack(_LOAD, 0, 0, offset)


def _load_argument(index: int) -> bytes:
    """Its lower 32 bits; both machines are little-endian."""
    return _load(_ARGUMENTS_AT + 8 * index)


def _if(test: int, value: int, *, skip_unless: int, skip_if: int = 0) -> bytes:
    """Leaves out so many of the instructions that follow."""
    return _INSTRUCTION.pack(test, skip_if, skip_unless, value)


def _return(fate: int) -> bytes:
    return _INSTRUCTION.pack(_RETURN, 0, 0, fate)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, "the kernel does not take the filter")
