"""Keys and values of all sequences, one row each, so that sequences of different length share one decode step.

Rows are compact: those that decode come first, those whose prompt is still being run come after them. A decode step
reads ``K[:n, :, :longest]``, which is a view, and hides what is behind each row's own end by a mask. Per layer the
tensors have shape (rows, kv heads, length, head size); they grow with what runs, up to a capacity in tokens that the
scheduler keeps. Knows no model and no request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from opsin.engine.local.kv_grid import rounded

Layers = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values per layer, each (1, kv heads, length, head size)."""


@dataclass(slots=True)
class _Layer:
    """Keys and values of one layer."""

    keys: torch.Tensor
    values: torch.Tensor


class SlotCache:
    """Rows by name. ``capacity_tokens`` bounds rows x length; the scheduler sees to it that what runs fits."""

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity_tokens = capacity_tokens
        self._layers: list[_Layer] = []
        self._names: list[str] = []
        self._lengths: dict[str, int] = {}
        self._num_ready = 0
        self._rows = self._length = 0

    @property
    def num_ready(self) -> int:
        """How many rows decode; they are the first."""
        return self._num_ready

    @property
    def size_bytes(self) -> int:
        """What is allocated."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self._layers)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def row(self, name: str) -> int:
        """Where a sequence is now; another one's end may move it."""
        return self._names.index(name)

    def open(self, name: str, length: int) -> None:
        """A row for a sequence whose prompt has ``length`` tokens, behind all others."""
        self._names.append(name)
        try:
            self.extend({name: length})
        except BaseException:  # no memory: as if it had never come
            self.close(name)
            raise

    def extend(self, lengths: Mapping[str, int]) -> None:
        """Makes room for so many positions of each row. What was written stays."""
        self._lengths.update(lengths)
        longest = max(self._lengths.values())
        if len(self._names) > self._rows or longest > self._length:
            self._resize(*self._shape_for(longest))

    def promote(self, name: str) -> None:
        """Its prompt is complete: it decodes from now on. One that does already stays where it is."""
        row = self.row(name)
        if row >= self._num_ready:
            self._swap(row, self._num_ready)
            self._num_ready += 1

    def close(self, name: str) -> None:
        """Frees a row. Unknown names are fine."""
        if name not in self._names:
            return
        row = self.row(name)
        if row < self._num_ready:
            self._num_ready -= 1
            self._move(self._num_ready, row)
            row = self._num_ready
        self._move(len(self._names) - 1, row)
        self._names.pop()
        del self._lengths[name]
        if not self._names:
            self._layers, self._rows, self._length = [], 0, 0

    def copy_out(self, name: str, length: int) -> Layers:
        """A copy of the first ``length`` positions of a row."""
        row = self.row(name)
        return [
            (layer.keys[row : row + 1, :, :length].clone(), layer.values[row : row + 1, :, :length].clone())
            for layer in self._layers
        ]

    def open_with(self, name: str, length: int, layers: Layers, num_filled: int) -> None:
        """As ``open``, with the first ``num_filled`` positions copied from ``layers``."""
        self.open(name, length)
        try:
            self._copy_in(self.row(name), layers, num_filled)
        except BaseException:  # half a beginning would be taken for a whole one
            self.close(name)
            raise

    def _copy_in(self, row: int, layers: Layers, length: int) -> None:
        for index, (keys, values) in enumerate(layers):
            layer = self._layer(index, keys, values)
            layer.keys[row, :, :length] = keys[0, :, :length]
            layer.values[row, :, :length] = values[0, :, :length]

    def write_chunk(
        self, index: int, row: int, start: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes (1, kv heads, n, head size) at ``start`` of a row; returns the row up to and with them."""
        layer = self._layer(index, keys, values)
        stop = start + keys.shape[2]
        layer.keys[row, :, start:stop] = keys[0]
        layer.values[row, :, start:stop] = values[0]
        return layer.keys[row : row + 1, :, :stop], layer.values[row : row + 1, :, :stop]

    def write_tokens(
        self, index: int, rows: torch.Tensor, positions: torch.Tensor, length: int, keys: torch.Tensor,
        values: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """Writes one position of each of ``rows``, (n, kv heads, 1, head size); returns those rows up to ``length``.

        ``rows`` are in order; they are a view when they are all that decode, and a copy otherwise.
        """
        layer = self._layer(index, keys, values)
        layer.keys[rows, :, positions] = keys[:, :, 0]
        layer.values[rows, :, positions] = values[:, :, 0]
        num = len(rows)
        if num == self._num_ready:  # all that decode, in order: a view
            return layer.keys[:num, :, :length], layer.values[:num, :, :length]
        return layer.keys[rows, :, :length], layer.values[rows, :, :length]

    def _layer(self, index: int, keys: torch.Tensor, values: torch.Tensor) -> _Layer:
        """The layers come into being in order at the first forward, which knows their shapes."""
        if index == len(self._layers):
            shape = self._rows, self._length
            self._layers.append(_Layer(self._zeros(keys, *shape), self._zeros(values, *shape)))
        return self._layers[index]

    def _zeros(self, like: torch.Tensor, rows: int, length: int) -> torch.Tensor:
        # Zeros: a masked position still takes part as 0 x value, and that has to be 0, whatever the memory held.
        return like.new_zeros((rows, like.shape[1], length, like.shape[3]))

    def _shape_for(self, longest: int) -> tuple[int, int]:
        """Where the capacity allows it, half as long again as now, so that growing costs little per token."""
        rows = max(len(self._names), self._rows)
        roomy = rounded(max(longest, self._length + self._length // 2 if longest > self._length else 0))
        for shape in ((rows, roomy), (rows, rounded(longest))):
            if shape[0] * shape[1] <= self._capacity_tokens:
                return shape
        return len(self._names), rounded(longest)

    def _resize(self, rows: int, length: int) -> None:
        """One layer after the other, so that at no time there are two of all of them.

        When memory ends in between, what all layers still have counts, and nothing that was written is lost.
        """
        used = min(len(self._names), self._rows), min(length, self._length)
        self._rows, self._length = min(rows, self._rows), min(length, self._length)
        for layer in self._layers:
            keys, values = (
                self._grown(layer.keys, (rows, length), used),
                self._grown(layer.values, (rows, length), used),
            )
            layer.keys, layer.values = keys, values
        self._rows, self._length = rows, length

    def _grown(self, old: torch.Tensor, shape: tuple[int, int], used: tuple[int, int]) -> torch.Tensor:
        new = self._zeros(old, *shape)
        new[: used[0], :, : used[1]] = old[: used[0], :, : used[1]]
        return new

    def _swap(self, one: int, other: int) -> None:
        if one == other:
            return
        tensors = [each for layer in self._layers for each in (layer.keys, layer.values)]
        # Taken before anything moves: were there no memory in the midst, two rows would be half each other's.
        spare = {each.shape: self._zeros(each, 1, each.shape[2])[0] for each in tensors}
        for each in tensors:
            held = spare[each.shape].copy_(each[one])
            each[one] = each[other]
            each[other] = held
        self._names[one], self._names[other] = self._names[other], self._names[one]

    def _move(self, source: int, target: int) -> None:
        """What stood at ``target`` is gone."""
        if source == target:
            return
        for layer in self._layers:
            layer.keys[target] = layer.keys[source]
            layer.values[target] = layer.values[source]
        self._names[target] = self._names[source]
