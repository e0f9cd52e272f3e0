"""Quotients as tensors of 32-bit floats hold them, for rules whose processors compute with such tensors."""

from __future__ import annotations

from struct import Struct

_FLOAT32 = Struct("<f")


def float32(value: float) -> float:
    """``value`` rounded to 32 bits. A quotient of integers below 2**24 that was rounded to 64 bits first is exact."""
    return _FLOAT32.unpack(_FLOAT32.pack(value))[0]
