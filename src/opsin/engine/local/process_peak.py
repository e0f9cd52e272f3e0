"""The highest resident memory of this process since a moment, as the kernel keeps it (Linux). Knows no torch."""

from __future__ import annotations

from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc_pid_clear_refs(5)


def start_peak() -> bool:
    """Forgets what was before; false where the kernel does not let us."""
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return False
    return True


def peak_bytes() -> int | None:
    """Since ``start_peak``; None where nobody tells."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    kilobytes = next((line.split()[1] for line in lines if line.startswith("VmHWM:")), None)
    return None if kilobytes is None else int(kilobytes) * 1024
