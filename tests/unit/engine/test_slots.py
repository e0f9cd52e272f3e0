"""Rows of the slot cache against a dictionary of what was written."""

from __future__ import annotations

import random

import pytest
import torch

from opsin.engine.local.kv_grid import cells
from opsin.engine.local.slots import SlotCache

HEADS, SIZE, NUM_LAYERS = 2, 3, 2


def values(generator: torch.Generator, num: int, tokens: int) -> torch.Tensor:
    return torch.randn(num, HEADS, tokens, SIZE, generator=generator)


class Model:
    """Writes to a cache and remembers, per sequence and layer, what has to be there."""

    def __init__(self, capacity_tokens: int = 10**6) -> None:
        self.slots = SlotCache(capacity_tokens)
        self.generator = torch.Generator().manual_seed(0)
        self.written: dict[str, list[torch.Tensor]] = {}

    def prefill(self, name: str, tokens: int, *, ready: bool = True) -> None:
        self.slots.open(name, tokens)
        self.written[name] = [values(self.generator, 1, tokens) for _ in range(NUM_LAYERS)]
        for index, written in enumerate(self.written[name]):
            keys, vals = self.slots.write_chunk(index, self.slots.row(name), 0, written, -written)
            assert torch.equal(keys, written)
            assert torch.equal(vals, -written)
        if ready:
            self.slots.promote(name)

    def decode(self) -> None:
        names = sorted(self.written, key=self.slots.row)[: self.slots.num_ready]
        lengths = {name: self.written[name][0].shape[2] + 1 for name in names}
        self.slots.extend(lengths)
        rows = torch.tensor([self.slots.row(name) for name in names])
        longest = max(lengths.values())
        for index in range(NUM_LAYERS):
            new = values(self.generator, len(names), 1)
            positions = torch.tensor(list(lengths.values())) - 1
            keys, vals = self.slots.write_tokens(index, rows, positions, longest, new, -new)
            for row, name in enumerate(names):
                self.written[name][index] = torch.cat([self.written[name][index], new[row : row + 1]], dim=2)
                assert torch.equal(keys[row : row + 1, :, : lengths[name]], self.written[name][index])
                assert torch.equal(vals[row : row + 1, :, : lengths[name]], -self.written[name][index])

    def close(self, name: str) -> None:
        self.slots.close(name)
        del self.written[name]

    def check(self) -> None:
        assert sorted(map(self.slots.row, self.written)) == list(range(len(self.written)))
        for name, layers in self.written.items():
            for (keys, vals), written in zip(self.slots.copy_out(name, layers[0].shape[2]), layers, strict=True):
                assert torch.equal(keys, written)
                assert torch.equal(vals, -written)


@pytest.mark.parametrize("seed", range(20))
def test_rows_keep_what_was_written_through_joins_and_leaves(seed: int):
    chance = random.Random(seed)
    model = Model(capacity_tokens=chance.choice([200, 10**6]))
    for number in range(60):
        names = sorted(model.written)
        match chance.choice(["prefill", "prompt", "decode", "decode", "close"]):
            case "prefill":
                model.prefill(f"s{number}", chance.randint(1, 40))
            case "prompt":
                model.prefill(f"s{number}", chance.randint(1, 40), ready=False)
            case "decode" if model.slots.num_ready:
                model.decode()
            case "close" if names:
                model.close(chance.choice(names))
            case _:
                pass
        model.check()


def test_a_copied_prefix_is_what_was_there():
    model = Model()
    model.prefill("one", 5)
    layers = model.slots.copy_out("one", 5)
    model.close("one")
    model.prefill("other", 2)
    model.slots.open_with("two", 9, layers, 4)
    for (keys, vals), (expected, minus) in zip(model.slots.copy_out("two", 4), layers, strict=True):
        assert torch.equal(keys, expected[:, :, :4])
        assert torch.equal(vals, minus[:, :, :4])


def test_memory_is_given_back_when_nothing_runs():
    model = Model()
    model.prefill("one", 30)
    assert model.slots.size_bytes > 0
    model.slots.close("unknown")
    model.close("one")
    assert model.slots.size_bytes == 0


class Scarce(SlotCache):
    """Has memory for so many tensors and no more."""

    num_left = 10**6

    def _zeros(self, like: torch.Tensor, rows: int, length: int) -> torch.Tensor:
        self.num_left -= 1
        if self.num_left < 0:
            raise MemoryError
        return super()._zeros(like, rows, length)


@pytest.mark.parametrize("num_left", range(2 * NUM_LAYERS))
def test_when_memory_ends_in_the_middle_nothing_is_lost(num_left: int):
    model = Model()
    model.slots = slots = Scarce(10**6)
    model.prefill("one", 20)
    model.prefill("two", 10)
    slots.num_left = num_left
    with pytest.raises(MemoryError):
        slots.open("three", 90)
    model.check()
    with pytest.raises(MemoryError):
        slots.extend({"one": 90})
    model.check()
    slots.num_left = 10**6
    model.decode()
    model.prefill("three", 90)
    model.check()


@pytest.mark.parametrize("num_left", range(2 * NUM_LAYERS))
def test_a_prefix_that_was_copied_in_part_is_not_there(num_left: int):
    """Whoever tries again would take what is missing for keys and values."""
    model = Model()
    model.prefill("one", 5)
    layers = model.slots.copy_out("one", 5)
    model.slots = slots = Scarce(10**6)
    slots.num_left = num_left
    with pytest.raises(MemoryError):
        slots.open_with("two", 9, layers, 4)
    assert "two" not in slots
    slots.num_left = 10**6
    slots.open_with("two", 9, layers, 4)
    for (keys, _), (expected, _) in zip(slots.copy_out("two", 4), layers, strict=True):
        assert torch.equal(keys, expected[:, :, :4])


def test_a_row_that_decodes_is_promoted_to_where_it_is():
    model = Model()
    model.prefill("prompt", 5, ready=False)
    model.prefill("stream", 7)
    model.slots.promote("stream")
    model.check()
    assert (model.slots.row("stream"), model.slots.num_ready) == (0, 1)
    model.decode()


def test_no_memory_to_promote_leaves_all_rows_as_they_are():
    model = Model()
    model.slots = slots = Scarce(10**6)
    model.prefill("one", 5, ready=False)
    model.prefill("two", 7, ready=False)
    slots.num_left = 0
    with pytest.raises(MemoryError):
        slots.promote("two")
    model.check()
    slots.num_left = 10**6
    slots.promote("two")
    model.check()
    assert (slots.row("two"), slots.num_ready) == (0, 1)


def test_no_more_is_taken_than_the_capacity_where_that_is_enough():
    model = Model(capacity_tokens=cells([40, 40]))
    model.prefill("one", 20)
    model.prefill("two", 20)
    model.prefill("three", 20)
    model.close("three")
    model.close("two")
    model.prefill("two", 40)
    per_token = 2 * NUM_LAYERS * HEADS * SIZE * 4
    assert model.slots.size_bytes <= cells([40, 40]) * per_token
