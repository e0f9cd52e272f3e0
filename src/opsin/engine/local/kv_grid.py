"""The arithmetic of the slot cache, which the scheduler plans with and the runner allocates by. Knows no torch."""

from __future__ import annotations

from collections.abc import Collection

BLOCK_TOKENS = 16
"""Rows are as long as the longest of them, rounded up to this."""


def rounded(length: int) -> int:
    """Up to whole blocks."""
    return -(-length // BLOCK_TOKENS) * BLOCK_TOKENS


def cells(lengths: Collection[int]) -> int:
    """Positions that rows of these lengths take together: every row is as long as the longest."""
    return len(lengths) * rounded(max(lengths, default=0))
