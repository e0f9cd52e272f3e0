"""What the engine core needs of a model, without torch, so that scheduler and bookkeeping run without it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from opsin.engine.local.feature_cache import Features
from opsin.engine.local.scheduler import PrefillChunk
from opsin.engine.local.sequence import Sequence, Unit


class OutOfMemory(Exception):
    """The device or the host had no memory for this call; the runner itself is still usable."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Where and how the model runs, for example ``cpu`` and ``bfloat16``.

    ``kv_bytes_per_token`` is what one position of one sequence takes over all layers, ``free_bytes`` what the device
    has left beside the weights.
    """

    device: str
    dtype: str
    kv_bytes_per_token: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Encoded:
    """Features of one unit, the tiles that went into them, and its share of the encoder's time."""

    features: Features
    num_tiles: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SavedKv:
    """Keys and values of the beginning of a sequence; ``value`` belongs to the runner."""

    value: object
    size_bytes: int


class Runner(Protocol):
    """Runs the model. Every call returns when the device is done, so that clocks read true times."""

    @property
    def packs(self) -> bool:
        """Whether chunks and sequences share one forward, once the model is loaded."""
        ...

    def load(self, progress: Callable[[str], None]) -> LoadedModel:
        """Loads the weights. Raises ConfigError if the folder, the device or the installation do not allow it."""
        ...

    def set_kv_capacity(self, tokens: int) -> None:
        """Bounds rows x length of the KV cache. Called once, after load."""
        ...

    def encode(self, units: Seq[Unit], pause: Callable[[], None] | None = None) -> list[Encoded]:
        """Vision encoder and connector; every unit has tiles, all of one shape. Raises OutOfMemory.

        ``pause`` is called again and again meanwhile, where the device runs what it is told at once, and may decode.
        Its time is none of the encoder's.
        """
        ...

    def forward(self, chunks: Seq[PrefillChunk], sequences: Seq[Sequence]) -> dict[str, int]:
        """Runs parts of prompts, and the newest token of each of ``sequences``; returns who got a next token, by id.

        That is each of ``sequences``, and each whose last chunk it was. The first chunk of one with a prefix starts
        behind it: the prefix is copied. One chunk or all ``sequences`` at a time where the runner does not pack. A
        forward that failed may be repeated, or parts of it. Raises OutOfMemory.
        """
        ...

    def save(self, sequence: Sequence) -> SavedKv:
        """Copies the keys and values of all computed positions. Raises OutOfMemory."""
        ...

    def preempt(self, sequence: Sequence) -> None:
        """Frees the keys and values of a sequence that will be prefilled again; its sampling goes on where it was."""
        ...

    def release(self, sequence: Sequence) -> None:
        """Frees what the sequence holds. Fine for one that was never prefilled."""
        ...

    def kv_bytes(self) -> int:
        """What is allocated for keys and values of running sequences."""
        ...

    def start_peak(self) -> None:
        """From now on ``peak_bytes`` is measured."""
        ...

    def peak_bytes(self) -> int | None:
        """The most memory since ``start_peak``: of the device, or this process's resident; None where nobody tells."""
        ...

    def memory_bytes(self) -> int | None:
        """Device memory in use; None where the model lives in the process's own memory."""
        ...
