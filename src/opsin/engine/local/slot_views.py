"""The slot cache as the ``Cache`` that one forward of a Transformers model writes to and reads from."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Cache

from opsin.engine.local.slots import SlotCache


class ChunkView(Cache):
    """One row, from ``start`` on."""

    def __init__(self, slots: SlotCache, row: int, start: int) -> None:
        super().__init__(layers=[])
        self._slots = slots
        self._row = row
        self._start = start

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See Cache."""
        return self._slots.write_chunk(layer_idx, self._row, self._start, key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions that are there already."""
        return self._start


class TokenView(Cache):
    """One position of each of several rows; what is read reaches to ``length``."""

    def __init__(self, slots: SlotCache, rows: torch.Tensor, positions: torch.Tensor, length: int) -> None:
        super().__init__(layers=[])
        self._slots = slots
        self._rows = rows
        self._positions = positions
        self._length = length

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See Cache."""
        return self._slots.write_tokens(layer_idx, self._rows, self._positions, self._length, key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions of the longest that are there already."""
        return self._length - 1
