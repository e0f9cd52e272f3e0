"""The filter in a process that tries what it forbids; its program in an interpreter, for the machine that is absent."""

from __future__ import annotations

import errno
import platform
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from opsin.media import seccomp

X86_64, AARCH64 = 0xC000_003E, 0xC000_00B7
ALLOWED, KILLED = 0x7FFF_0000, 0x8000_0000
PROT_EXEC, CLONE_THREAD, CLONE_NEWUSER = 4, 0x1_0000, 0x1000_0000
A_THREAD = 0x3D_0F00  # what glibc's pthread_create asks of clone

linux_x86_64 = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="runs the filter itself"
)


def fails_with(number: int) -> int:
    return 0x5_0000 | number


def fate(program: bytes, arch: int, number: int, *arguments: int) -> int:
    """What the kernel would do: the few instructions of BPF that the filter consists of."""
    data = struct.pack("<IIQ6Q", number, arch, 0, *arguments, *(0,) * (6 - len(arguments)))
    instructions = list(struct.iter_unpack("=HBBI", program))
    accumulator = position = 0
    for _ in range(len(instructions)):
        code, if_true, if_false, value = instructions[position]
        position += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, value)
            case 0x06:
                return value
            case _:
                holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[code]
                position += if_true if holds else if_false
    raise AssertionError("the program does not end")


CASES = (  # name, number on x86_64, on aarch64, arguments, fate without and with threads
    ("read", 0, 63, (), ALLOWED, ALLOWED),
    ("futex", 202, 98, (), ALLOWED, ALLOWED),
    ("openat", 257, 56, (), fails_with(errno.EPERM), fails_with(errno.EPERM)),
    ("prctl", 157, 167, (), fails_with(errno.EPERM), fails_with(errno.EPERM)),
    ("unheard of", 9999, 9999, (), fails_with(errno.EPERM), fails_with(errno.EPERM)),
    ("socket", 41, 198, (), KILLED, KILLED),
    ("connect", 42, 203, (), KILLED, KILLED),
    ("execve", 59, 221, (), KILLED, KILLED),
    ("ptrace", 101, 117, (), KILLED, KILLED),
    ("io_uring_setup", 425, 425, (), KILLED, KILLED),
    ("mmap of data", 9, 222, (0, 4096, 3), ALLOWED, ALLOWED),
    ("mmap of code", 9, 222, (0, 4096, 1 | PROT_EXEC), fails_with(errno.EPERM), fails_with(errno.EPERM)),
    ("mprotect to code", 10, 226, (0, 4096, PROT_EXEC), fails_with(errno.EPERM), fails_with(errno.EPERM)),
    ("own CPU limit", 302, 261, (0, 0), ALLOWED, ALLOWED),
    ("own memory limit", 302, 261, (0, 9), ALLOWED, ALLOWED),
    ("own descriptor limit", 302, 261, (0, 7), fails_with(errno.EPERM), fails_with(errno.EPERM)),
    ("another's CPU limit", 302, 261, (1, 0), fails_with(errno.EPERM), fails_with(errno.EPERM)),
    ("clone of a process", 56, 220, (signal.SIGCHLD,), KILLED, KILLED),
    ("clone of a thread", 56, 220, (A_THREAD,), KILLED, ALLOWED),
    ("clone into a namespace", 56, 220, (CLONE_THREAD | CLONE_NEWUSER,), KILLED, KILLED),
    ("clone3", 435, 435, (), KILLED, fails_with(errno.ENOSYS)),
)


@pytest.mark.parametrize(("name", "on_x86_64", "on_aarch64", "arguments", "plain", "threaded"), CASES)
def test_fates(
    name: str, on_x86_64: int, on_aarch64: int, arguments: tuple[int, ...], plain: int, threaded: int
) -> None:
    for threads, expected in ((False, plain), (True, threaded)):
        assert fate(seccomp.program("x86_64", threads=threads), X86_64, on_x86_64, *arguments) == expected, name
        assert fate(seccomp.program("aarch64", threads=threads), AARCH64, on_aarch64, *arguments) == expected, name


def test_calls_of_another_architecture_kill() -> None:
    """Under i386 the number of read, 0, is restart_syscall, and 11 is execve."""
    x86_64, aarch64 = (seccomp.program(machine, threads=False) for machine in ("x86_64", "aarch64"))
    assert fate(x86_64, 0x4000_0003, 0) == KILLED
    assert fate(x86_64, X86_64, 0x4000_0000) == KILLED, "x32"
    assert fate(aarch64, X86_64, 63) == KILLED
    assert fate(x86_64, X86_64, 57) == fate(x86_64, X86_64, 58) == KILLED, "fork, vfork"


HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


@pytest.mark.parametrize(("machine", "arch"), [("x86_64", X86_64), ("aarch64", AARCH64)])
def test_the_kernels_own_numbers(machine: str, arch: int) -> None:
    """Where its headers are installed: nothing is allowed but what the names in the table say."""
    if not HEADERS[machine].exists():
        pytest.skip("no kernel headers")
    text = HEADERS[machine].read_text()
    numbers = {int(number): name for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)\b", text)}
    program = seccomp.program(machine, threads=False)
    allowed = {name for number, name in numbers.items() if fate(program, arch, number) == ALLOWED}
    assert allowed == ALLOWED_NAMES


ALLOWED_NAMES = {
    *("read", "pread64", "write", "close", "fstat", "lseek", "sendto", "recvfrom"),
    *("brk", "mmap", "munmap", "mremap", "mprotect", "madvise"),
    *("futex", "set_robust_list", "rseq", "sched_yield", "sched_getaffinity", "getpid", "gettid"),
    *("rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "restart_syscall", "exit", "exit_group"),
    *("clock_gettime", "gettimeofday", "getrandom", "getrusage", "prlimit64"),
}


FILTERED = """
import ctypes, os, socket, subprocess, sys, threading, mmap
from opsin.media import seccomp
seccomp.install(threads={threads})
try:
    {attempt}
except OSError as error:
    os._exit(error.errno)
os._exit(0)
"""


def attempt(code: str, *, threads: bool = False) -> int:
    """How a filtered process ends that runs ``code``: a signal, negative, or the number of an error."""
    program = FILTERED.format(attempt=code, threads=threads)
    return subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL, check=False).returncode


@linux_x86_64
@pytest.mark.parametrize(
    "code",
    [
        "socket.socket()",
        "socket.socketpair()",
        "os.fork()",
        "os.execv('/bin/true', ['true'])",
        "os.posix_spawn('/bin/true', ['true'], {})",
        "os.kill(os.getppid(), 0)",
        "os.memfd_create('x')",
        "ctypes.CDLL(None).ptrace(0, 0, 0, 0)",
        "threading.Thread(target=print).start()",
    ],
)
def test_what_only_an_intruder_calls_kills(code: str) -> None:
    assert attempt(code) == -signal.SIGSYS


@linux_x86_64
@pytest.mark.parametrize(
    "code",
    [
        "open('/etc/hostname')",
        "open('/dev/null', 'w')",
        "os.listdir('/')",
        "os.unlink('/nonexistent')",
        "os.chmod('/tmp', 0o777)",
        "mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)",
    ],
)
def test_what_is_not_foreseen_fails(code: str) -> None:
    assert attempt(code) == errno.EPERM


@linux_x86_64
@pytest.mark.parametrize(
    ("code", "threads"),
    [("bytearray(2**26)", False), ("sum(range(9))", False), ("threading.Thread(target=print).start()", True)],
)
def test_what_decoding_needs_goes_on(code: str, threads: bool) -> None:
    assert attempt(code, threads=threads) == 0


@linux_x86_64
def test_a_second_filter_cannot_undo_the_first() -> None:
    assert attempt("seccomp.install(threads=False)") == errno.EPERM
