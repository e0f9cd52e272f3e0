from __future__ import annotations

import sys

import pytest

from opsin.engine.local.process_peak import peak_bytes, start_peak

SIZE = 64 * 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel keeps it on Linux")
def test_the_peak_is_forgotten_and_kept_anew():
    high = bytearray(SIZE)
    assert start_peak()
    with_it = peak_bytes()
    del high
    assert start_peak()
    without = peak_bytes()
    assert with_it is not None
    assert without is not None
    assert with_it - without > SIZE / 2
    del (again := [bytearray(SIZE)])[:]
    assert not again
    assert (peak_bytes() or 0) - without > SIZE / 2
