"""Where and with what the client runs, for the head of the results. A key given on the command line is left out."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from opsin import __version__
from opsin.bench.record import Provenance

_SECRET_FLAG = "--api-key"  # noqa: S105 the flag's name


def provenance(command: Sequence[str]) -> Provenance:
    """Of this process."""
    return Provenance(
        opsin=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=_cpu(),
        cores=_cores(),
        load_average=os.getloadavg()[0],
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        command=redacted(command),
    )


def redacted(command: Sequence[str]) -> list[str]:
    """The command line without the key."""
    words = list[str]()
    hide = False
    for word in command:
        flag, equals, _ = word.replace("_", "-", word.startswith("--api_")).partition("=")
        words.append("…" if hide else f"{_SECRET_FLAG}=…" if flag == _SECRET_FLAG and equals else word)
        hide = not hide and word in (_SECRET_FLAG, "--api_key")
    return words


def _cpu() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
