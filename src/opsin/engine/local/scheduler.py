"""Which sequences work in the next step. Knows no torch, no runner, no messages.

Continuous batching: every sequence that decodes does so in every step. Beside that, a step does at most one heavy piece
of work while somebody decodes: one micro-batch of the vision encoder or one budget of prefill, in turns; so no stream
ever waits for more than one of them, and for the encoder only until its next break (``Pace``). First come, first
served; only a text may go ahead of a picture that is not encoded yet. When the KV cache would run out, the youngest
sequence loses its keys and values and computes them again later (``docs/adr/0010``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from opsin.core.stages import Stage
from opsin.engine.local.kv_grid import cells
from opsin.engine.local.sequence import Sequence, Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one step, and the KV cache, may hold.

    ``max_num_batched_tokens`` is for the first prompt of a step in which nobody decodes; all others share
    ``max_num_tokens_beside_decode``.
    ``max_num_encoder_tokens`` bounds a micro-batch by its features, and ``max_num_encoder_units`` too, where it is not
    None; at least one unit always goes.
    ``kv_capacity_tokens`` is rows x length and at least ``max_model_len``, so that one sequence alone always fits.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_tokens_beside_decode: int
    max_num_encoder_tokens: int
    max_num_encoder_units: int | None = None
    kv_capacity_tokens: int


@dataclass(frozen=True, slots=True)
class EncodeItem:
    """One unit, on behalf of the sequence that needs it first."""

    sequence: Sequence
    unit: Unit


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Positions ``start`` to ``stop`` of a sequence; the last chunk yields a token."""

    sequence: Sequence
    start: int
    stop: int

    @property
    def is_last(self) -> bool:
        """Whether the sequence decodes after it."""
        return self.stop == self.sequence.num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledWork:
    """One step, in this order: take KV away, encode a micro-batch, prefill chunks, decode one token each."""

    preempt: tuple[Sequence, ...] = ()
    encode: tuple[EncodeItem, ...] = ()
    prefill: tuple[PrefillChunk, ...] = ()
    decode: tuple[Sequence, ...] = ()


class Scheduler(Protocol):
    """Owns the sequences between Submit and their end."""

    @property
    def max_num_seqs(self) -> int:
        """How many sequences may run at once."""
        ...

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence."""
        ...

    def remove(self, request_id: str) -> Sequence | None:
        """Takes a sequence out, waiting or running; None if there is none."""
        ...

    def schedule(self) -> ScheduledWork:
        """Admits what may run and says what it does next."""
        ...

    def decoding(self) -> tuple[Sequence, ...]:
        """Who may decode once more at this moment, before the next ``schedule``."""
        ...

    def __iter__(self) -> Iterator[Sequence]:
        """All sequences, running ones first."""
        ...

    def __len__(self) -> int:
        """Number of all sequences."""
        ...


class ContinuousScheduler:
    """See the module."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []  # by arrival
        self._prefill_next = True

    @property
    def max_num_seqs(self) -> int:
        """See Scheduler."""
        return self._limits.max_num_seqs

    def add(self, sequence: Sequence) -> None:
        """See Scheduler."""
        self._waiting.append(sequence)

    def remove(self, request_id: str) -> Sequence | None:
        """See Scheduler."""
        sequence = next((sequence for sequence in self if sequence.id == request_id), None)
        if sequence is not None:
            owner = self._running if sequence in self._running else self._waiting
            owner.remove(sequence)
        return sequence

    def schedule(self) -> ScheduledWork:
        """See Scheduler."""
        preempt = self._preempt()
        while self._waiting and len(self._running) < self._limits.max_num_seqs:
            self._running.append(self._waiting.popleft())
        decode = tuple(sequence for sequence in self._running if sequence.is_decoding and sequence not in preempt)
        encode, prefill = self._micro_batch(), self._chunks(len(decode), preempt)
        if decode and encode and prefill:
            encode, prefill = ((), prefill) if self._prefill_next else (encode, ())
            self._prefill_next = not self._prefill_next
        return ScheduledWork(preempt=preempt, encode=encode, prefill=prefill, decode=decode)

    def decoding(self) -> tuple[Sequence, ...]:
        """See Scheduler. Nobody where the next tokens do not fit: the next ``schedule`` makes room."""
        holding = [sequence for sequence in self._running if sequence.num_computed]
        return tuple(sequence for sequence in holding if sequence.is_decoding) if self._fits(holding) else ()

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._running
        yield from self._waiting

    def __len__(self) -> int:
        return len(self._waiting) + len(self._running)

    def _preempt(self) -> tuple[Sequence, ...]:
        """The youngest, until the next token of all others fits. They keep their place in the order."""
        holding = [sequence for sequence in self._running if sequence.num_computed]
        preempted: list[Sequence] = []
        while not self._fits(holding):
            preempted.append(holding.pop())
        return tuple(preempted)

    def _fits(self, holding: list[Sequence]) -> bool:
        """Whether their next positions do. One alone always fits."""
        return len(holding) <= 1 or cells(_lengths(holding)) <= self._limits.kv_capacity_tokens

    def _micro_batch(self) -> tuple[EncodeItem, ...]:
        """Units of one shape, of whoever came first, up to the budget; each unit once, whoever needs it."""
        items: dict[str, EncodeItem] = {}
        room = self._limits.max_num_encoder_tokens
        for sequence in self._running:
            for unit in sequence.missing():
                if unit.key in items:
                    continue
                if len(items) == self._limits.max_num_encoder_units:
                    return tuple(items.values())
                if items and (unit.num_tokens > room or not _same_shape(unit, next(iter(items.values())).unit)):
                    return tuple(items.values())
                items[unit.key] = EncodeItem(sequence, unit)
                room -= unit.num_tokens
        return tuple(items.values())

    def _chunks(self, num_decoding: int, preempted: tuple[Sequence, ...]) -> tuple[PrefillChunk, ...]:
        """Prompts in order, the last of them cut at the budget."""
        room = max(self._limits.max_num_tokens_beside_decode - num_decoding, 1)
        holding = [sequence for sequence in self._running if sequence.num_computed and sequence not in preempted]
        chunks: list[PrefillChunk] = []
        for sequence in self._running:
            if room <= 0:
                break
            if sequence in preempted or sequence.next_stage is not Stage.PREFILL:
                continue
            if sequence not in holding:
                holding.append(sequence)
                if not self._fits(holding):
                    break
            is_alone = not num_decoding and not chunks
            chunk = _chunk(sequence, self._limits.max_num_batched_tokens if is_alone else room)
            chunks.append(chunk)
            room -= chunk.stop - chunk.start
        return tuple(chunks)


def _lengths(holding: list[Sequence]) -> list[int]:
    """Positions that each needs in the next step. A prompt that has begun needs all of its own."""
    return [sequence.num_tokens for sequence in holding]


def _chunk(sequence: Sequence, room: int) -> PrefillChunk:
    start = sequence.next_position
    stop = sequence.cut(min(start + room, _end(sequence, start)))
    if stop <= start:  # a picture that is longer than the budget and cannot be cut
        stop = sequence.cut_after(start + 1)
    return PrefillChunk(sequence, start, stop)


def _end(sequence: Sequence, start: int) -> int:
    """Where what may be run at once from ``start`` on ends: an image token that was generated is none of a picture."""
    num_prompt = len(sequence.prompt_ids)
    return num_prompt if sequence.image_positions and start < num_prompt else sequence.num_tokens


def _same_shape(one: Unit, other: Unit) -> bool:
    """Whether two units can be one batch of the encoder."""
    if one.tiles is None or other.tiles is None:
        return False
    return (one.tiles.num_tiles, one.tiles.width, one.tiles.height) == (
        other.tiles.num_tiles, other.tiles.width, other.tiles.height,
    )  # fmt: skip
