"""The slot cache as the ``Cache`` that one forward of a Transformers model writes to and reads from."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

import torch
from transformers import Cache

from opsin.engine.local.attention import Mask, attend_causally
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


@dataclass(frozen=True, slots=True)
class Part:
    """Positions of a forward that share a view: ``shape`` is (rows, tokens of each); ``mask`` as attention takes it."""

    view: ChunkView | TokenView
    shape: tuple[int, int]
    mask: Mask


class PackedView(Cache):
    """Several parts one behind the other in one row of a forward: products see them all, attention each by itself."""

    def __init__(self, parts: Seq[Part]) -> None:
        super().__init__(layers=[])
        self._parts = parts

    def attended(
        self, index: int, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """From (1, heads, positions, size), and (1, kv heads, positions, size) twice, to (1, positions, heads x size).

        ``index`` is the layer's.
        """
        attended: list[torch.Tensor] = []
        start = 0
        for part in self._parts:
            rows, tokens = part.shape
            stop = start + rows * tokens
            own = (heads[:, :, start:stop] for heads in (query, keys, values))
            attended.append(_attended(part, index, *own, scaling=scaling))
            start = stop
        return torch.cat(attended)[None]

    def last_positions(self) -> list[int]:
        """Where the last position of each row is, part by part."""
        ends = accumulate(part.shape[1] for part in self._parts for _ in range(part.shape[0]))
        return [end - 1 for end in ends]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """None that all have in common: positions are always explicit."""
        return 0


def _attended(
    part: Part, index: int, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, scaling: float
) -> torch.Tensor:
    """Of one part, from (1, heads, positions, size) to (positions, heads x size)."""
    rows, tokens = part.shape
    query, keys, values = (
        each.view(each.shape[1], rows, tokens, each.shape[3]).transpose(0, 1) for each in (query, keys, values)
    )
    keys, values = part.view.update(keys, values, index)
    attended = attend_causally(query, keys, values, cast("torch.Tensor | None", part.mask), scaling)
    return attended.flatten(0, 1).flatten(1)
