from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource
from opsin.core.allocator import keep_large_blocks

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        bytearray(4 * 2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

default = faults()
keep_large_blocks()
faults()
print(default, faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's settings")
def test_memory_of_a_large_body_is_used_again() -> None:
    told = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    default, kept = map(int, told.split())
    assert kept < default / 10, told
