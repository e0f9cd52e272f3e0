from __future__ import annotations

import mmap
import sys

import pytest

from opsin.engine.local.process_peak import peak_bytes, start_peak

SIZE = 64 * 2**20


def _touched() -> mmap.mmap:
    """Resident memory that goes back to the kernel when it is closed, whatever malloc has been told to keep."""
    memory = mmap.mmap(-1, SIZE)
    for page in range(0, SIZE, mmap.PAGESIZE):
        memory[page] = 1
    return memory


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel keeps it on Linux")
def test_the_peak_is_forgotten_and_kept_anew():
    high = _touched()
    assert start_peak()
    with_it = peak_bytes()
    high.close()
    assert start_peak()
    without = peak_bytes()
    assert with_it is not None
    assert without is not None
    assert with_it - without > SIZE / 2
    _touched().close()
    assert (peak_bytes() or 0) - without > SIZE / 2
