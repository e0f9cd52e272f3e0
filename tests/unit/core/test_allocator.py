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
    default, kept = _told_by(PROGRAM)
    assert kept < default / 10


SPREAD = """
import ctypes
from pathlib import Path
from opsin.core.allocator import give_back_pages, keep_large_blocks

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1])

keep_large_blocks()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
blocks = [libc.malloc(2**20) for _ in range(64)]
for block in blocks:
    ctypes.memset(block, 1, 2**20)
for block in blocks[:-1]:
    libc.free(block)
spread = resident()
give_back_pages()
print(spread, resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's settings")
def test_free_pages_below_a_block_in_use_are_given_back() -> None:
    spread, left = _told_by(SPREAD)
    assert spread - left > 60 * 2**20 / 4096


def _told_by(program: str) -> list[int]:
    """The numbers that it prints, in a process of its own."""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    return [int(number) for number in told.split()]
