"""One request inside the engine: its tokens, its pictures, its clock. Knows no torch and no scheduler."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise

from opsin.core.stages import Stage
from opsin.engine.api import FinishReason, SamplingParams
from opsin.engine.local.feature_cache import Features, PictureUnits
from opsin.engine.local.messages import Tiles
from opsin.engine.local.prefix_cache import Identity, PrefixMatch


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


@dataclass(frozen=True, slots=True)
class Unit:
    """What the vision encoder runs at once, see ``EncoderUnit``. ``key`` is equal only for the same pixels and scope.

    ``picture`` is its index in the request and ``share`` its part of that picture's pixels. ``tiles`` is None where the
    features were leased.
    """

    key: str
    picture: int
    share: float
    num_tokens: int
    tiles: Tiles | None


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows ``start`` to ``stop`` of one unit's features."""

    features: Features
    start: int
    stop: int


@dataclass(kw_only=True, eq=False)
class Sequence:
    """A request from Submit to its end. ``max_output_tokens`` already respects ``max_model_len``.

    Units stand in prompt order, and their tokens fill ``image_positions`` in that order. ``num_computed`` positions are
    in the KV cache; ``prefix`` is where they can be copied from instead of being computed, if they can.
    ``uncached_keys`` are pictures that were purged after the request came: their features are used and not kept.
    ``is_alone``: no other request was in the engine so far; None before the first step.
    """

    id: str
    scope: str
    prompt_ids: tuple[int, ...]
    image_positions: tuple[int, ...]
    picture_keys: tuple[str, ...]
    origins: tuple[str, ...]
    units: tuple[Unit, ...]
    sampling: SamplingParams
    max_output_tokens: int
    clock: StageClock
    whole_pictures: bool = False
    output_ids: list[int] = field(default_factory=list[int])
    features: dict[str, Features] = field(default_factory=dict[str, Features])
    encoded_pictures_s: dict[int, float] = field(default_factory=dict[int, float])
    encoded_tiles: int = 0
    uncached_keys: set[str] = field(default_factory=set[str])
    num_computed: int = 0
    num_cached: int = 0
    prefix: PrefixMatch | None = None
    keeps_prefix: bool = True
    is_alone: bool | None = None

    @property
    def next_stage(self) -> Stage:
        """What this sequence needs next."""
        if self.is_decoding:
            return Stage.DECODE
        return Stage.VISION_ENCODE if any(self.missing()) else Stage.PREFILL

    @property
    def is_decoding(self) -> bool:
        """Whether only the newest token is not in the KV cache yet."""
        return bool(self.output_ids) and self.num_computed == self.num_tokens - 1

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def image_tokens(self) -> int:
        """Prompt positions that the vision encoder has filled, now or in the cached prefix: its own count."""
        missing = {unit.key for unit in self.missing()}
        there = (unit for unit in self.units if unit.key not in missing)
        return sum(
            self.features[unit.key].num_tokens if unit.key in self.features else unit.num_tokens for unit in there
        )

    @property
    def computed_image_tokens(self) -> int:
        """Those of them that are in the KV cache."""
        return bisect_left(self.image_positions, self.num_computed)

    @property
    def next_position(self) -> int:
        """Where prefill goes on."""
        return self.num_computed or self.skipped

    @property
    def skipped(self) -> int:
        """Positions at the start that need not be computed."""
        return self.prefix.length if self.prefix else 0

    @cached_property
    def _bounds(self) -> tuple[int, ...]:
        """Unit i has the features from ``_bounds[i]`` to ``_bounds[i + 1]`` of all."""
        return tuple(accumulate((unit.num_tokens for unit in self.units), initial=0))

    @cached_property
    def identity(self) -> Identity:
        """What stands at each position of the prompt: a token id, or a row of a unit's features."""
        standing: list[int | tuple[str, int]] = list(self.prompt_ids)
        rows = ((unit.key, row) for unit in self.units for row in range(unit.num_tokens))
        for position, row in zip(self.image_positions, rows, strict=True):
            standing[position] = row
        return tuple(standing)

    @cached_property
    def _pictures(self) -> tuple[PictureUnits, ...]:
        return tuple(
            PictureUnits(key, tuple(unit.key for unit in self.units if unit.picture == index), origin)
            for index, (key, origin) in enumerate(zip(self.picture_keys, self.origins, strict=True))
        )

    def ids(self, start: int, stop: int) -> tuple[int, ...]:
        """Token ids of a range of positions."""
        if stop <= len(self.prompt_ids):
            return self.prompt_ids[start:stop]
        return (*self.prompt_ids, *self.output_ids)[start:stop]

    def missing(self) -> Iterator[Unit]:
        """Units without features, in order; those that lie in the cached prefix are not needed."""
        for unit, last in zip(self.units, self._bounds[1:], strict=True):
            if unit.key not in self.features and self.image_positions[last - 1] >= self.skipped:
                yield unit

    def holders(self, unit_key: str) -> list[PictureUnits]:
        """The pictures of this request that have a unit and may be kept."""
        indices = {unit.picture for unit in self.units if unit.key == unit_key}
        return [self._pictures[index] for index in indices if self.picture_keys[index] not in self.uncached_keys]

    def unit_indices(self, length: int) -> list[int]:
        """Of the first ``length`` positions: the index of the unit that fills it, -1 for text."""
        indices = [-1] * max(length, len(self.prompt_ids))
        filling = (index for index, unit in enumerate(self.units) for _ in range(unit.num_tokens))
        for position, index in zip(self.image_positions, filling, strict=True):
            indices[position] = index
        return indices[:length]

    def unit_sizes(self) -> list[tuple[int, int]]:
        """Width and height of each unit's tiles in pixels."""
        return [
            (unit.tiles.width, unit.tiles.height) if unit.tiles else self.features[unit.key].tile_size
            for unit in self.units
        ]

    def features_between(self, start: int, stop: int) -> list[Slice]:
        """The features that belong to image positions in a range."""
        first, last = (bisect_left(self.image_positions, position) for position in (start, stop))
        return [
            Slice(self.features[unit.key], max(first - begin, 0), min(last - begin, unit.num_tokens))
            for unit, begin, end in zip(self.units, self._bounds, self._bounds[1:], strict=False)
            if begin < last and end > first
        ]

    def cut(self, position: int) -> int:
        """The last place up to ``position`` where prefill may pause: not inside a picture that has to stay whole."""
        around = self._whole_picture_around(position)
        return around.start if around else position

    def cut_after(self, position: int) -> int:
        """The first such place from ``position`` on."""
        around = self._whole_picture_around(position)
        return around.stop if around else position

    def forget(self, origin: str | None) -> None:
        """Keeps pictures of an origin (None: all of this request) out of the caches from now on."""
        made = zip(self.picture_keys, self.origins, strict=True)
        forgotten = {key for key, made_of in made if origin in (None, made_of)}
        self.uncached_keys |= forgotten
        self.keeps_prefix = self.keeps_prefix and origin is not None and not forgotten

    def drop_pixels(self) -> None:
        """Every unit has been encoded, or is not needed."""
        self.units = tuple(replace(unit, tiles=None) for unit in self.units)

    def finish_reason(self, eos_token_ids: frozenset[int]) -> FinishReason | None:
        """Why the newest token ends the sequence, or None."""
        if self.output_ids[-1] in eos_token_ids and not self.sampling.ignore_eos:
            return "stop"
        return "length" if len(self.output_ids) >= self.max_output_tokens else None

    def _whole_picture_around(self, position: int) -> range | None:
        if self.whole_pictures:
            for begin, end in pairwise(self._bounds):
                positions = range(self.image_positions[begin], self.image_positions[end - 1] + 1)
                if positions.start < position < positions.stop:
                    return positions
        return None
