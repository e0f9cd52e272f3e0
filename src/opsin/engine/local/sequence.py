"""One request inside the engine: its tokens, its pictures, its clock. Knows no torch and no scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from opsin.core.stages import Stage
from opsin.engine.api import FinishReason, SamplingParams
from opsin.engine.local.feature_cache import Features
from opsin.engine.local.messages import PictureData


class StageClock:
    """Divides the time since ``started_at`` among stages without gap or overlap: each charge takes all since the last.

    Charge ``QUEUE`` when work begins and the work's stage when it ends; then every wait is queue by construction. From
    the first token on, waits between decode steps belong to decode: they are what the reader of the stream sees.
    """

    def __init__(self, started_at: float, now: Callable[[], float] = time.monotonic) -> None:
        self._mark = started_at
        self._now = now
        self.stages_s: dict[Stage, float] = {}

    def charge(self, stage: Stage) -> None:
        """Adds all time since the last charge to ``stage``."""
        now = self._now()
        self.stages_s[stage] = self.stages_s.get(stage, 0.0) + max(0.0, now - self._mark)
        self._mark = now


@dataclass(slots=True)
class Sequence:
    """A request from Submit to its end. ``max_output_tokens`` already respects ``max_model_len``.

    ``features`` grows in picture order; it is complete when it is as long as ``pictures``. ``uncached_keys`` were
    purged after the request came: their features are used once and not kept.
    """

    id: str
    scope: str
    prompt_ids: tuple[int, ...]
    pictures: tuple[PictureData, ...]
    sampling: SamplingParams
    max_output_tokens: int
    clock: StageClock
    output_ids: list[int] = field(default_factory=list[int])
    features: list[Features] = field(default_factory=list[Features])
    encoded_pictures_s: list[float] = field(default_factory=list[float])
    encoded_tiles: int = 0
    uncached_keys: set[str] = field(default_factory=set[str])

    @property
    def next_stage(self) -> Stage:
        """What this sequence needs next."""
        if len(self.features) < len(self.pictures):
            return Stage.VISION_ENCODE
        return Stage.DECODE if self.output_ids else Stage.PREFILL

    @property
    def next_picture(self) -> PictureData:
        """The first picture without features."""
        return self.pictures[len(self.features)]

    @property
    def image_tokens(self) -> int:
        """Prompt positions that the vision encoder has filled: its own count, not the plan's."""
        return sum(features.num_tokens for features in self.features)

    @property
    def kv_tokens(self) -> int:
        """Positions in the KV cache: nothing before prefill, and the newest token is not there yet."""
        return len(self.prompt_ids) + len(self.output_ids) - 1 if self.output_ids else 0

    @property
    def position(self) -> int:
        """Position of the newest token, which the next decode step runs."""
        return len(self.prompt_ids) + len(self.output_ids) - 1

    def forget(self, key: str | None) -> None:
        """Keeps features of ``key`` (None: of every picture) out of the cache from now on."""
        self.uncached_keys |= {picture.key for picture in self.pictures if key in (None, picture.key)}

    def finish_reason(self, eos_token_ids: frozenset[int]) -> FinishReason | None:
        """Why the newest token ends the sequence, or None."""
        if self.output_ids[-1] in eos_token_ids and not self.sampling.ignore_eos:
            return "stop"
        return "length" if len(self.output_ids) >= self.max_output_tokens else None
