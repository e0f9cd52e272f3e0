"""What the engine core needs of a model, without torch, so that scheduler and bookkeeping run without it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from opsin.engine.local.feature_cache import Features
from opsin.engine.local.messages import PictureData
from opsin.engine.local.sequence import Sequence


class OutOfMemory(Exception):
    """The device or the host had no memory for this call; the runner itself is still usable."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Where and how the model runs, for example ``cpu`` and ``bfloat16``."""

    device: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Encoded:
    """Features of one picture, the tiles that went into them, and its share of the encoder's time."""

    features: Features
    num_tiles: int
    seconds: float


class Runner(Protocol):
    """Runs the model. Every call returns when the device is done, so that clocks read true times."""

    def load(self, progress: Callable[[str], None]) -> LoadedModel:
        """Loads the weights. Raises ConfigError if the folder, the device or the installation do not allow it."""
        ...

    def encode(self, pictures: Seq[PictureData]) -> list[Encoded]:
        """Vision encoder and connector; every picture has tiles. Raises OutOfMemory."""
        ...

    def prefill(self, sequence: Sequence) -> int:
        """Runs the prompt and returns the first token. Raises OutOfMemory."""
        ...

    def decode(self, sequences: Seq[Sequence]) -> list[int]:
        """Runs the newest token of each sequence and returns the next one of each. Raises OutOfMemory."""
        ...

    def release(self, sequence: Sequence) -> None:
        """Frees what the sequence holds. Fine for one that was never prefilled."""
        ...

    def memory_bytes(self) -> int | None:
        """Device memory in use; None where the model lives in the process's own memory."""
        ...
