"""Which request brings which pictures and which words: all of a run, decided before anything is sent. Pure.

Pictures are numbers here; what they look like is :mod:`opsin.bench.pictures`' business, and two numbers never look
alike. A number is used again only where the cache state says so.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from opsin.bench.config import BenchConfig, CacheKind, Count, Resolution
from opsin.bench.record import Kind
from opsin.bench.words import WORDS
from opsin.core.errors import ConfigError

NUM_PROBES = 256
"""Different probes; after so many the first comes again."""
_PROBE_WORDS = 8


@dataclass(frozen=True, slots=True)
class PictureSpec:
    """One picture: its number in the run and, unless it comes from a folder, its size."""

    number: int
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What one request asks. ``pictures`` are numbers, in order; ``words`` follow them."""

    kind: Kind
    level: int
    pictures: tuple[int, ...]
    words: str
    output_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Everything that is sent in one run; ``levels`` in order of the configuration's."""

    pictures: tuple[PictureSpec, ...]
    warmup: tuple[Ask, ...]
    prime: tuple[Ask, ...]
    levels: tuple[tuple[Ask, ...], ...]
    probes: tuple[Ask, ...]

    @property
    def asks(self) -> Iterator[Ask]:
        """All, in the order in which they are made."""
        return itertools.chain(self.warmup, self.prime, *self.levels, self.probes)


def plan(config: BenchConfig, counts: Sequence[int], available: int | None = None) -> Workload:
    """The workload for ``counts`` requests per level.

    Args:
        available: pictures there are, None when they are drawn.

    Raises:
        ConfigError: the cache state needs more pictures than there are.
    """
    drawer = _Drawer(config)
    prime, draw = _of_cache(config, drawer)
    levels = tuple(
        tuple(drawer.ask(Kind.LOAD, level, draw(level, rng)) for _ in range(count))
        for level, count in enumerate(counts)
        for rng in (random.Random(f"{config.seed} level {level}"),)
    )
    warmup = tuple(drawer.warmup(max(counts, default=0)))
    if available is not None and len(drawer.pictures) > available:
        raise ConfigError(
            f"--cache {config.cache} needs {len(drawer.pictures)} different pictures for this run, and "
            f"{config.picture_dir} has {available}; one that came before would be in the server's cache. Ask for fewer "
            "requests, or say that pictures repeat, e.g. --cache mixed:K:0"
        )
    return Workload(
        pictures=tuple(drawer.pictures),
        warmup=warmup,
        prime=prime,
        levels=levels,
        probes=tuple(drawer.probes()) if config.probe_rate else (),
    )


_Draw = Callable[[int, random.Random], tuple[int, ...]]
"""(level, randomness) → the pictures of the next request."""


def _of_cache(config: BenchConfig, drawer: _Drawer) -> tuple[tuple[Ask, ...], _Draw]:
    """What is sent beforehand, and how the pictures of each request are chosen."""
    match config.cache.kind:
        case CacheKind.COLD:
            return (), drawer.new_pictures
        case CacheKind.WARM:
            pool = drawer.pool(config.cache.unique or 1)
            prime = tuple(drawer.ask(Kind.PRIME, -1, (number,)) for number in pool)
            return prime, lambda _, rng: tuple(rng.choice(pool) for _ in range(_draw_count(config.images, rng)))
        case CacheKind.MIXED:
            return (), _mixed(config, drawer)


def _mixed(config: BenchConfig, drawer: _Drawer) -> _Draw:
    """Pictures by Zipf's law; each level has its own, so that no level finds what an earlier one left."""
    unique = config.cache.unique or 1
    cumulative = list(itertools.accumulate(rank**-config.cache.exponent for rank in range(1, unique + 1)))
    pools = dict[int, list[int]]()

    def draw(level: int, rng: random.Random) -> tuple[int, ...]:
        pool = pools.get(level) or pools.setdefault(level, drawer.pool(unique))
        ranks = (
            bisect.bisect(cumulative, rng.random() * cumulative[-1]) for _ in range(_draw_count(config.images, rng))
        )
        return tuple(pool[rank] for rank in ranks)

    return draw


class _Drawer:
    """Hands out new pictures and words; remembers which pictures it handed out."""

    def __init__(self, config: BenchConfig) -> None:
        self.pictures: list[PictureSpec] = []
        self._config = config
        self._words = random.Random(f"{config.seed} words")
        self._sizes = random.Random(f"{config.seed} sizes")

    def new_pictures(self, _: int, rng: random.Random) -> tuple[int, ...]:
        """For one request, none of them seen before."""
        count = _draw_count(self._config.images, rng)
        sizes = rng.choices(self._config.resolution, [one.weight for one in self._config.resolution], k=count)
        return tuple(self._new(size) for size in sizes)

    def pool(self, unique: int) -> list[int]:
        """New pictures to draw from, sizes in proportion to their shares, in random order."""
        sizes = [size for size, _ in zip(_stratified(self._config.resolution), range(unique), strict=False)]
        self._sizes.shuffle(sizes)
        return [self._new(size) for size in sizes]

    def warmup(self, busiest: int) -> Iterator[Ask]:
        """Every resolution and every number of pictures meets the server once, with pictures that never come again."""
        sizes, counts = itertools.cycle(self._config.resolution), self._config.images
        numbers = itertools.cycle(range(counts.low, counts.high + 1))
        for _ in range(self._num_warmups(busiest)):
            pictures = tuple(self._new(next(sizes)) for _ in range(next(numbers)))
            yield self.ask(Kind.WARMUP, -1, pictures)

    def _num_warmups(self, busiest: int) -> int:
        if self._config.num_warmups is not None:
            return self._config.num_warmups
        shapes = max(len(self._config.resolution), self._config.images.high - self._config.images.low + 1)
        return min(max(2 * shapes, 4), busiest)

    def probes(self) -> Iterator[Ask]:
        """Texts alone."""
        for _ in range(NUM_PROBES):
            yield self._ask(Kind.PROBE, -1, (), num_words=_PROBE_WORDS, output_len=1)

    def ask(self, kind: Kind, level: int, pictures: tuple[int, ...]) -> Ask:
        """A request of the configured length, its words unlike any other's."""
        return self._ask(
            kind, level, pictures, num_words=self._config.input_words, output_len=self._config.output_len
        )  # fmt: skip

    def _ask(self, kind: Kind, level: int, pictures: tuple[int, ...], *, num_words: int, output_len: int) -> Ask:
        # Plain words: random token ids would hit special tokens and picture slots.
        words = " ".join(self._words.choices(WORDS, k=num_words))
        return Ask(kind=kind, level=level, pictures=pictures, words=words, output_len=output_len)

    def _new(self, size: Resolution) -> int:
        spec = PictureSpec(len(self.pictures), size.width, size.height)
        self.pictures.append(spec)
        return spec.number


def _draw_count(images: Count, rng: random.Random) -> int:
    return rng.randint(images.low, images.high)


def _stratified(resolution: Sequence[Resolution]) -> Iterator[Resolution]:
    """Sizes one by one, at every moment as near to their shares as whole numbers are."""
    total = sum(one.weight for one in resolution)
    taken = [0] * len(resolution)
    for number in itertools.count(1):
        owed = [one.weight / total * number - taken[at] for at, one in enumerate(resolution)]
        most = max(range(len(resolution)), key=owed.__getitem__)
        taken[most] += 1
        yield resolution[most]
