"""The model itself, through Transformers: with the files behind it, all of the engine that touches the device.

Prefill runs a chunk of a sequence on that sequence's row of the slot cache; decode runs one token of every sequence at
once, over the rows as they lie; where the text model allows it, all of them are one forward, so that the weights are
read once (``docs/adr/0010``). Knows no queue and no socket.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import compress
from typing import Any, cast

import torch

from opsin.engine.local import loading, process_peak
from opsin.engine.local.attention import additive
from opsin.engine.local.config import LocalEngineConfig
from opsin.engine.local.families import SEAMS
from opsin.engine.local.families.seam import Positions
from opsin.engine.local.feature_cache import Features
from opsin.engine.local.layer_breaks import LayerBreaks
from opsin.engine.local.messages import Tiles
from opsin.engine.local.out_of_memory import translated
from opsin.engine.local.pixels import pixel_values
from opsin.engine.local.runner_api import Encoded, LoadedModel, SavedKv
from opsin.engine.local.sampler import Sampler
from opsin.engine.local.scheduler import PrefillChunk
from opsin.engine.local.sequence import Sequence, Slice, Unit
from opsin.engine.local.slot_views import ChunkView, PackedView, Part, TokenView
from opsin.engine.local.slots import Layers, SlotCache
from opsin.engine.local.threads import default_threads
from opsin.engine.local.vision_encoder import vision_layers


@dataclass(frozen=True, slots=True)
class _State:
    """What one sequence has beside its row; it outlives a preemption."""

    sampler: Sampler
    positions: Positions


@dataclass(frozen=True, slots=True)
class _Input:
    """Of a forward: ``ids`` (rows, tokens), ``positions`` (axes, rows, tokens), and features for the pictures in it."""

    ids: torch.Tensor
    positions: torch.Tensor
    part: Part
    slices: Seq[Slice] = ()


class TransformersRunner:
    """One model on one device."""

    def __init__(self, config: LocalEngineConfig) -> None:
        self._config = config
        self._seam = SEAMS[config.model_type]
        self._states: dict[str, _State] = {}
        self._has_process_peak = False
        self._packs = False

    @property
    def packs(self) -> bool:
        """See Runner."""
        return self._packs

    def load(self, progress: Callable[[str], None]) -> LoadedModel:
        """See Runner."""
        torch.set_num_threads(self._config.num_threads or default_threads())
        progress("loading the weights")
        loaded = loading.load(self._config)
        self._model, self._device, self._dtype, self._vision = loaded.model, loaded.device, loaded.dtype, loaded.vision
        self._packs = loaded.packs
        # Elsewhere kernels run behind Python's back, and a break would come before they have begun.
        self._breaks = LayerBreaks(vision_layers(self._model) if self._device.type == "cpu" else ())
        return LoadedModel(
            device=self._device.type,
            dtype=str(self._dtype).removeprefix("torch."),
            kv_bytes_per_token=loaded.kv_bytes_per_token,
            free_bytes=loaded.free_bytes,
        )

    def set_kv_capacity(self, tokens: int) -> None:
        """See Runner."""
        self._slots = SlotCache(tokens)

    @property
    def is_empty(self) -> bool:
        """Whether no sequence holds anything."""
        return not self._states and self.kv_bytes() == 0

    @property
    def vision_dtype(self) -> str:
        """What the vision encoder runs in: ``int8``, ``float32`` …"""
        return self._vision.name

    @torch.inference_mode()
    def encode(self, units: Seq[Unit], pause: Callable[[], None] | None = None) -> list[Encoded]:
        """See Runner. Time is shared out evenly: all units have the same shape."""
        if self._vision.is_int8 and len(units) > 1:  # else a unit's features would depend on its company
            return [encoded for unit in units for encoded in self.encode([unit], pause)]
        with translated(), self._breaks.taken_by(pause):
            started = time.monotonic()
            pixels = torch.stack([self._pixels(_tiles_of(unit)) for unit in units])
            originals = [_tiles_of(unit).original for unit in units]
            features = [piece.to(self._dtype) for piece in self._seam.encode(self._model, pixels, originals)]
            self._wait()
            seconds = (time.monotonic() - started - self._breaks.taken_s) / len(units)
        # Cloned: a slice would keep the whole batch alive behind the cache's back.
        return [
            Encoded(
                Features(piece.clone(), piece.nbytes, piece.shape[-2], (tiles.width, tiles.height)),
                tiles.num_tiles,
                seconds,
            )
            for piece, tiles in zip(features, map(_tiles_of, units), strict=True)
        ]

    @torch.inference_mode()
    def forward(self, chunks: Seq[PrefillChunk], sequences: Seq[Sequence]) -> dict[str, int]:
        """See Runner. Each samples by its own rules."""
        with translated():
            if sequences:
                self._slots.extend({sequence.id: sequence.num_tokens for sequence in sequences})
            for sequence in sequences:  # one that was preempted may come here by a chunk that was not its last
                self._slots.promote(sequence.id)
            for chunk in chunks:
                self._open(chunk)
            by_row = sorted(sequences, key=lambda sequence: self._slots.row(sequence.id))
            logits = self._run([*map(self._chunk_part, chunks), *([self._token_part(by_row)] if by_row else [])])
            is_chosen = [chunk.is_last for chunk in chunks] + [True] * len(by_row)
            owners = [chunk.sequence for chunk in chunks] + by_row
            tokens = self._sample(list(compress(owners, is_chosen)), logits[is_chosen])
            self._wait()
            for chunk in chunks:
                if chunk.is_last:
                    self._slots.promote(chunk.sequence.id)
        return tokens

    @torch.inference_mode()
    def save(self, sequence: Sequence) -> SavedKv:
        """See Runner."""
        with translated():
            layers = self._slots.copy_out(sequence.id, sequence.num_computed)
        return SavedKv(layers, sum(keys.nbytes + values.nbytes for keys, values in layers))

    @torch.inference_mode()
    def preempt(self, sequence: Sequence) -> None:
        """See Runner."""
        self._slots.close(sequence.id)

    @torch.inference_mode()
    def release(self, sequence: Sequence) -> None:
        """See Runner."""
        self._slots.close(sequence.id)
        self._states.pop(sequence.id, None)

    def kv_bytes(self) -> int:
        """See Runner."""
        return self._slots.size_bytes

    def start_peak(self) -> None:
        """See Runner."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            self._has_process_peak = self._device.type == "cpu" and process_peak.start_peak()

    def peak_bytes(self) -> int | None:
        """See Runner."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return process_peak.peak_bytes() if self._has_process_peak else None

    def memory_bytes(self) -> int | None:
        """See Runner."""
        if self._device.type == "cuda":
            return torch.cuda.memory_allocated(self._device)
        return torch.mps.current_allocated_memory() if self._device.type == "mps" else None

    def _pixels(self, tiles: Tiles) -> torch.Tensor:
        return pixel_values(tiles, self._config.image_mean, self._config.image_std, self._device).to(self._vision.dtype)

    def _open(self, chunk: PrefillChunk) -> None:
        """A row and a state for a sequence; what its prefix holds is copied, not computed."""
        sequence = chunk.sequence
        if sequence.id not in self._states:
            sampler = Sampler(sequence.sampling, sequence.prompt_ids, self._config.eos_token_ids, self._device)
            self._states[sequence.id] = _State(sampler, self._seam.positions(self._model, sequence, self._device))
        if sequence.id in self._slots:
            return
        if chunk.start:
            assert sequence.prefix is not None
            layers = cast("Layers", sequence.prefix.prefix.value)
            self._slots.open_with(sequence.id, sequence.num_tokens, layers, chunk.start)
        else:
            self._slots.open(sequence.id, sequence.num_tokens)

    def _chunk_part(self, chunk: PrefillChunk) -> _Input:
        sequence, start, stop = chunk.sequence, chunk.start, chunk.stop
        mask = self._seam.chunk_mask(self._model, sequence, start, stop, self._device)
        return _Input(
            ids=self._tensor(sequence.ids(start, stop))[None],
            positions=self._states[sequence.id].positions.of(start, stop)[:, None],
            part=Part(
                ChunkView(self._slots, self._slots.row(sequence.id), start),
                (1, stop - start),
                additive(mask, self._dtype),
            ),
            slices=sequence.features_between(start, stop),
        )

    def _token_part(self, sequences: Seq[Sequence]) -> _Input:
        """The newest token of each; the sequences are in the order of their rows."""
        lengths = [sequence.num_tokens for sequence in sequences]
        rows = self._tensor([self._slots.row(sequence.id) for sequence in sequences])
        mask = self._seam.decode_mask(self._model, self._tensor(lengths), max(lengths))
        positions = [self._states[each.id].positions.of(each.num_tokens - 1, each.num_tokens) for each in sequences]
        return _Input(
            ids=self._tensor([sequence.output_ids[-1] for sequence in sequences])[:, None],
            positions=torch.cat(positions, dim=1)[:, :, None],
            part=Part(
                TokenView(self._slots, rows, self._tensor(lengths) - 1, max(lengths)),
                (len(sequences), 1),
                additive(mask, self._dtype),
            ),
        )

    def _run(self, inputs: Seq[_Input]) -> torch.Tensor:
        """Logits (n, vocabulary) of the last position of each row of each input."""
        if len(inputs) == 1:
            one = inputs[0]
            ids, positions, mask, cache, kept = one.ids, one.positions, one.part.mask, one.part.view, 1
        else:
            ids = torch.cat([each.ids.flatten() for each in inputs])[None]
            positions = torch.cat([each.positions.flatten(1) for each in inputs], dim=1)[:, None]
            mask, cache = None, PackedView([each.part for each in inputs])
            kept = self._tensor(cache.last_positions())
        output = self._model(
            input_ids=ids,
            position_ids=self._seam.position_ids(positions),
            attention_mask=mask,
            cache=cache,
            mm_encoder_outputs=self._encoder_outputs([piece for each in inputs for piece in each.slices]),
            logits_to_keep=kept,
        )
        return output.logits[:, -1] if len(inputs) == 1 else output.logits[0]

    def _sample(self, sequences: Seq[Sequence], logits: torch.Tensor) -> dict[str, int]:
        """The next token by sequence; the greedy ones share one pass over (n, vocabulary).

        ``max`` gives argmax's indices five times sooner on a CPU in bfloat16: 0.6 instead of 3.3 ms for 8 of 49,280.
        """
        likeliest = cast("list[int]", logits.max(dim=-1).indices.tolist())
        tokens: dict[str, int] = {}
        for sequence, row, token in zip(sequences, logits, likeliest, strict=True):
            sampler = self._states[sequence.id].sampler
            is_argmax = sampler.is_argmax(sequence.output_ids)
            tokens[sequence.id] = token if is_argmax else sampler.sample(row, sequence.output_ids)
        return tokens

    def _encoder_outputs(self, slices: Seq[Slice]) -> dict[str, Any] | None:
        if not slices:
            return None
        rows = [cast("torch.Tensor", each.features.value)[..., each.start : each.stop, :] for each in slices]
        return {"image": self._seam.encoder_outputs(torch.cat(rows, dim=-2))}

    def _tensor(self, numbers: Seq[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self._device)

    def _wait(self) -> None:
        """Until the device is done: kernels run behind Python's back, and the clock would read too early."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elif self._device.type == "mps":
            torch.mps.synchronize()


def _tiles_of(unit: Unit) -> Tiles:
    assert unit.tiles is not None, "the core encodes only units with pixels"
    return unit.tiles
