"""A cap on pixels for families whose processors limit a number of square tiles."""

from __future__ import annotations


def tiles_within(max_pixels: int, side: int, limit: int) -> int:
    """How many tiles of ``side`` x ``side`` pixels a cap leaves of ``limit``: at least one."""
    return min(max(max_pixels // side**2, 1), limit)


def caps_of_tiles(side: int, limit: int) -> list[int]:
    """The caps that leave one tile, two, and so on up to ``limit``."""
    return [tiles * side**2 for tiles in range(1, limit + 1)]
