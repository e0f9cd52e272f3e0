"""Real workers as the kernel sees them, and processes that try to use more than a worker may."""

from __future__ import annotations

import errno
import platform
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from opsin.core.errors import ConfigError
from opsin.media.config import MediaConfig
from opsin.media.confine import Level
from opsin.media.pool import RenderPool
from opsin.media.sandbox import Sandbox, observe

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and Linux limits")
filters_only = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"), reason="needs seccomp"
)

CONFINED = """
import os, signal, sys, resource
from opsin.media.confine import Level, confine
confinement = confine(2**28, threads=False)
try:
    {attempt}
except MemoryError:
    os._exit(77)
except OSError as error:
    os._exit(error.errno)
os._exit(0)
"""


def attempt(code: str) -> int:
    """How a confined process ends that runs ``code``."""
    program = CONFINED.format(attempt=code)
    ended = subprocess.run(
        [sys.executable, "-c", program], stderr=subprocess.DEVNULL, check=False, start_new_session=True
    )
    return ended.returncode


async def test_a_worker_is_confined_as_the_pool_says_and_the_kernel_confirms() -> None:
    pool = RenderPool(MediaConfig())
    await pool.start()
    try:
        seen = await observe(MediaConfig())
        assert pool.level == seen.level
        if sys.platform == "linux":
            assert seen.level >= Level.LIMITS
            assert not seen.core_dumps
    finally:
        await pool.close()


@linux_only
async def test_a_worker_can_open_nothing_start_nothing_and_stands_back() -> None:
    pool = RenderPool(MediaConfig(render_workers=1))
    await pool.start()
    try:
        process = psutil.Process(pool.worker_pids[0])
        limits = {kind: process.rlimit(kind) for kind in (psutil.RLIMIT_NOFILE, psutil.RLIMIT_NPROC)}
        assert limits == {psutil.RLIMIT_NOFILE: (0, 0), psutil.RLIMIT_NPROC: (0, 0)}
        written, _ = process.rlimit(psutil.RLIMIT_FSIZE)
        assert written < 2**30
        assert process.nice() == min(19, psutil.Process().nice() + 5)
        assert process.num_threads() == 1
    finally:
        await pool.close()


@linux_only
@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("confinement.allow(cpu_s=9, memory_bytes=2**24); bytearray(2**22)", 0),
        ("confinement.allow(cpu_s=9, memory_bytes=2**24); bytearray(2**26)", 77),
        ("confinement.allow(cpu_s=9, memory_bytes=2**40); bytearray(2**27)", 0),
        ("confinement.allow(cpu_s=9, memory_bytes=2**40); bytearray(2**29)", 77),
        ("confinement.allow(cpu_s=0, memory_bytes=0)\n    while True: pass", -signal.SIGXCPU),
    ],
    ids=["within", "beyond what the task may", "within what any may", "beyond what any may", "no end"],
)
def test_a_task_gets_its_share_and_no_more(code: str, end: int) -> None:
    assert attempt(code) == end


@linux_only
def test_the_share_of_a_task_is_counted_from_what_is_in_use() -> None:
    code = "kept = bytearray(2**25); confinement.allow(cpu_s=9, memory_bytes=2**25); more = bytearray(2**24)"
    assert attempt(code) == 0


@filters_only
@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("os.open('/etc/passwd', os.O_RDONLY)", errno.EPERM),
        ("os.fork()", -signal.SIGSYS),
        ("signal.raise_signal(signal.SIGTERM); sys.exit(confinement.level < Level.SECCOMP)", errno.EPERM),
        ("resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9))", errno.EPERM),
        ("os.setpriority(os.PRIO_PROCESS, 0, 0)", errno.EPERM),
    ],
)
def test_what_is_taken_away_cannot_be_taken_back(code: str, end: int) -> None:
    assert attempt(code) == end


@linux_only
def test_a_log_that_is_a_file_can_be_written_but_not_without_end(tmp_path: Path) -> None:
    code = CONFINED.format(attempt="[os.write(2, bytes(2**20)) for _ in range(99)]")
    log = tmp_path / "log"
    log.write_bytes(b"before")
    with log.open("ab") as stderr:
        ended = subprocess.run([sys.executable, "-c", code], stderr=stderr, check=False, start_new_session=True)
    assert ended.returncode == errno.EFBIG
    assert 2**20 < log.stat().st_size <= 2**24 + len("before")


@pytest.mark.parametrize(
    ("memory", "seccomp", "network", "level"),
    [
        (None, False, False, Level.PROCESS),
        (None, True, True, Level.PROCESS),
        (2**30, False, True, Level.LIMITS),
        (2**30, True, False, Level.SECCOMP),
        (2**30, True, True, Level.NAMESPACES),
    ],
)
def test_a_level_has_all_before_it(memory: int | None, seccomp: bool, network: bool, level: Level) -> None:
    sandbox = Sandbox(memory_limit_bytes=memory, core_dumps=False, seccomp=seccomp, own_network=network)
    assert sandbox.level is level
    assert level.label == level.name.lower()


def test_levels_are_ordered() -> None:
    assert [level.label for level in sorted(Level)] == ["process", "limits", "seccomp", "namespaces"]


# A machine that forbids what a container's profile may forbid: the calls fail with EPERM for all that starts from here.
FORBIDDING = """
import asyncio, ctypes, struct
from opsin.core.errors import ConfigError
from opsin.media import confine
from opsin.media.config import MediaConfig
from opsin.media.pool import RenderPool

code = struct.pack("=HBBI", 0x20, 0, 0, 0)
for number in {numbers}:
    code += struct.pack("=HBBI", 0x15, 0, 1, number) + struct.pack("=HBBI", 0x06, 0, 0, 0x00050001)
code += struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)
class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(len(code) // 8, code))) == 0

async def main():
    pool = RenderPool(MediaConfig(render_workers=1, require_sandbox={required}))
    try:
        await pool.start()
        print(pool.level.label)
    except ConfigError as error:
        print(error.message)
    finally:
        await pool.close()

asyncio.run(main())
"""
UNSHARE, SECCOMP = {"x86_64": (272, 317), "aarch64": (97, 277)}.get(platform.machine(), (0, 0))


@filters_only
@pytest.mark.parametrize(
    ("numbers", "required", "said"),
    [
        ((UNSHARE,), True, "seccomp"),
        ((UNSHARE, SECCOMP), False, "limits"),
        ((SECCOMP,), True, "--require-sandbox: this machine does not filter the system calls"),
    ],
    ids=["no namespaces", "no filters", "no filters, required"],
)
def test_where_the_machine_forbids_it_the_level_is_lower_or_nothing_starts(
    numbers: tuple[int, ...], required: bool, said: str
) -> None:
    program = FORBIDDING.format(numbers=numbers, required=required)
    ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert ended.stdout.startswith(said)


@filters_only
async def test_a_machine_that_has_it_starts_when_it_is_required() -> None:
    pool = RenderPool(MediaConfig(render_workers=1, require_sandbox=True))
    await pool.start()
    await pool.close()


@pytest.mark.skipif(sys.platform == "linux", reason="Linux has it")
async def test_elsewhere_nothing_starts_when_it_is_required() -> None:
    with pytest.raises(ConfigError, match="--require-sandbox"):
        await RenderPool(MediaConfig(render_workers=1, require_sandbox=True)).start()
