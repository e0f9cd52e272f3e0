"""How glibc keeps memory for bodies and tensors: large blocks are used again, and not given back to the kernel at once.

By default a block of 128 KiB and more is mapped when it is asked for and unmapped when it is freed, and each request
pays for the page faults of all its copies of a picture: with these settings a bare server took 4.5 ms in place of 11
for 2.5 MB. In one picture of four every tile of the engine met 7,000 page faults,
10 ms of 330, and with these settings in none.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_SETTINGS = {
    _MMAP_THRESHOLD: 32 * 2**20,  # the most that glibc takes
    _TRIM_THRESHOLD: 64 * 2**20,  # what may stay free at the end of the heap: bounds what is kept for nothing
    _TOP_PAD: 16 * 2**20,
}


def keep_large_blocks() -> None:
    """For this process; nothing happens where the C library has no such settings."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for name, value in _SETTINGS.items():
            mallopt(name, value)


def give_back_pages() -> None:
    """Free pages between blocks in use go to the kernel; nothing happens where the C library cannot.

    Among blocks that live long, freed ones become too small for the next large one, and the heap spreads: an engine
    grew by 35 MB over 20,000 requests, and its blocks by nothing. Takes 2.5 ms for 49 MB.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
