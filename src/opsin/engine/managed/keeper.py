"""Runs one program and ends it, with all that it has started.

    python -m opsin.engine.managed.keeper --grace SECONDS -- PROGRAM ARGUMENT …

Stands between opsin and a program that does not know opsin. Standard input is a leash: when it ends, because opsin let
go or because opsin was killed, the program gets SIGTERM, and after the grace it and all its descendants get SIGKILL.
When the program ends by itself, what it left behind is killed. The exit status is the program's, 128 and the number
for a signal. Should this process be killed, the kernel kills the program. Knows no engine.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

import psutil

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_LINUX = sys.platform == "linux"
_NO_SUCH_PROGRAM = 127
_STDIN = 0


def keep(words: Sequence[str], grace_s: float) -> int:
    """Runs the program to its end, or to that of standard input; returns its exit status."""
    if _LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # whoever loses its parent becomes ours
    try:
        program = subprocess.Popen(  # noqa: S603 - the operator's command
            words,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # the terminal's signals are for opsin
            preexec_fn=_die_with_parent if _LINUX else None,
        )
    except OSError as error:
        sys.stdout.write(f"{words[0]}: {error.strerror}\n")
        sys.stdout.flush()
        return _NO_SUCH_PROGRAM
    threading.Thread(target=_until_let_go, args=(program, grace_s), daemon=True).start()
    status = program.wait()
    _kill_descendants()
    return status if status >= 0 else 128 - status


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _until_let_go(program: subprocess.Popen[bytes], grace_s: float) -> None:
    while os.read(_STDIN, 1):
        pass
    program.terminate()
    try:
        program.wait(grace_s)
    except subprocess.TimeoutExpired:
        program.kill()


def _kill_descendants() -> None:
    """Until none is left: what is killed may have just started something."""
    while left := psutil.Process().children(recursive=True):
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(left, timeout=1.0)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grace", type=float, required=True, help="seconds between SIGTERM and SIGKILL")
    parser.add_argument("words", nargs="+", help="the program and its arguments")
    args = parser.parse_args()
    sys.exit(keep(args.words, args.grace))


if __name__ == "__main__":
    main()
