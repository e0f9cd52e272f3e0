"""The keeper ends a program with all that it started, whatever ends first. Real processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

import psutil
import pytest

KEEPER = (sys.executable, "-P", "-m", "opsin.engine.managed.keeper")
CHILD = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
DETACHED = CHILD + "start_new_session=True); print(p.pid, flush=True); "
WAITS = "import time; time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
PATIENCE_S = 60.0


@contextmanager
def keeping(code: str, grace_s: float = 30.0) -> Generator[subprocess.Popen[str]]:
    words = [*KEEPER, "--grace", str(grace_s), "--", sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as keeper:
        try:
            yield keeper
        finally:
            keeper.kill()


def first_line(keeper: subprocess.Popen[str]) -> str:
    assert keeper.stdout is not None
    return keeper.stdout.readline()


def let_go(keeper: subprocess.Popen[str]) -> None:
    assert keeper.stdin is not None
    keeper.stdin.close()


def program_of(keeper: subprocess.Popen[str]) -> psutil.Process:
    (program,) = psutil.Process(keeper.pid).children()
    return program


def check_gone(*processes: psutil.Process) -> None:
    """Gone, or a zombie that nobody reaps, where PID 1 does not."""
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE_S)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def test_its_status_is_the_programs() -> None:
    with keeping("raise SystemExit(7)") as keeper:
        assert keeper.wait(PATIENCE_S) == 7
    with keeping("import os; os.kill(os.getpid(), 9)") as keeper:
        assert keeper.wait(PATIENCE_S) == 128 + signal.SIGKILL


def test_a_program_that_is_not_there_is_said() -> None:
    with subprocess.Popen(
        [*KEEPER, "--grace", "1", "--", "/no/such/program"], stdout=subprocess.PIPE, text=True
    ) as keeper:
        assert first_line(keeper) == "/no/such/program: No such file or directory\n"
        assert keeper.wait(PATIENCE_S) == 127


def test_what_a_program_leaves_behind_is_killed() -> None:
    with keeping(DETACHED + "sys.exit(3)") as keeper:
        orphan = int(first_line(keeper))
        assert keeper.wait(PATIENCE_S) == 3
        assert not psutil.pid_exists(orphan)


def test_letting_go_ends_the_program_gently() -> None:
    gently = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); print(1, flush=True); "
    with keeping(gently + WAITS) as keeper:
        first_line(keeper)
        let_go(keeper)
        assert keeper.wait(PATIENCE_S) == 5


def test_a_stubborn_program_is_killed_after_the_grace() -> None:
    with keeping(STUBBORN + DETACHED + WAITS, grace_s=0.2) as keeper:
        child = psutil.Process(int(first_line(keeper)))
        program = program_of(keeper)
        let_go(keeper)
        assert keeper.wait(PATIENCE_S) == 128 + signal.SIGKILL
        check_gone(program, child)


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels have no parent-death signal")
def test_a_killed_keeper_takes_the_program_along() -> None:
    with keeping("print(1, flush=True); " + WAITS) as keeper:
        first_line(keeper)
        program = program_of(keeper)
        keeper.kill()
        check_gone(program)


def test_the_grace_is_no_delay() -> None:
    with keeping("print(1, flush=True); " + WAITS, grace_s=600.0) as keeper:
        first_line(keeper)
        began = time.monotonic()
        let_go(keeper)
        keeper.wait(PATIENCE_S)
        assert time.monotonic() - began < PATIENCE_S
