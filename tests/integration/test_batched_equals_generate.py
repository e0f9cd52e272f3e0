"""Whatever shares a step, joins, leaves, is cancelled, preempted or cached: the tokens are those of ``generate``.

Random schedules on a tiny model in float32, in this process. ``--schedules N`` runs as many as asked for.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import nn

from opsin.engine.api import Picture, SamplingParams
from opsin.engine.local import attention
from opsin.engine.local.core import EngineCore
from opsin.engine.local.decoder_stack import DecoderStack
from opsin.engine.local.feature_cache import FeatureCache, Features
from opsin.engine.local.loading import load
from opsin.engine.local.messages import Failed, PictureData, StepOutput, Submit, Tiles
from opsin.engine.local.prefix_cache import PrefixCache
from opsin.engine.local.runner import TransformersRunner
from opsin.engine.local.runner_api import Encoded
from opsin.engine.local.scheduler import ContinuousScheduler, Limits, ScheduledWork
from opsin.engine.local.sequence import Unit
from opsin.engine.local.traits import TRAITS
from opsin.engine.local.units import units_of
from tests.tiny import EOS, MAX_MODEL_LEN, TILE, Reference, config_of, picture, prompt

MAX_TOKENS = 12
SCOPE = "scope"


@dataclass(frozen=True)
class Asked:
    """A request, and what ``generate`` answers as far as float32 decides: up to the first near tie."""

    ids: tuple[int, ...]
    pictures: tuple[Picture, ...]
    expected: tuple[int, ...]
    is_whole: bool

    def agrees(self, tokens: list[int], *, ended: bool) -> bool:
        length = min(len(tokens), len(self.expected))
        same = tuple(tokens[:length]) == self.expected[:length]
        return same and (not ended or not self.is_whole or len(tokens) == len(self.expected))


@dataclass
class Outcome:
    """What became of the requests of one schedule."""

    tokens: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    ended: set[str] = field(default_factory=set[str])
    wrong: list[str] = field(default_factory=list[str])
    failed: list[Failed] = field(default_factory=list[Failed])
    seen: Counter[str] = field(default_factory=Counter[str])


class CountingRunner(TransformersRunner):
    """Counts units, so that a test can tell whether the caches were met at all."""

    num_encoded = 0

    def encode(self, units: Sequence[Unit], pause: Callable[[], None] | None = None) -> list[Encoded]:
        self.num_encoded += len(units)
        return super().encode(units, pause)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(tmp_path_factory.mktemp("tiny-idefics3"))


@pytest.fixture(scope="module")
def runner(reference: Reference) -> CountingRunner:
    runner = CountingRunner(config_of(reference.folder))
    runner.load(lambda step: None)
    return runner


@pytest.fixture(scope="module")
def pool(reference: Reference) -> list[Asked]:
    """Text and 1 to 8 pictures, some alike, some cut into tiles; every third is the next turn of another one."""
    chance = random.Random(0)
    asked: list[Asked] = []
    for number in range(36):
        num_pictures = chance.choice([0, 0, 1, 1, 2, 3, 8])
        num_tiles = chance.choice([1, 1, 2, 5]) if num_pictures < 8 else 1
        pictures = tuple(picture(chance.randrange(6), num_tiles) for _ in range(num_pictures))
        ids = prompt(*pictures, text=chance.randint(2, 60))
        if number % 3 == 2:
            last = asked[-1]
            ids, pictures = (*last.ids, *last.expected, 7, 8, 9), last.pictures
        asked.append(answered(reference, ids, pictures))
    return asked


def answered(reference: Reference, ids: tuple[int, ...], pictures: tuple[Picture, ...]) -> Asked:
    tokens, sure = reference.greedy_and_sure(ids, pictures, MAX_TOKENS)
    shown = [token for token in tokens[:sure] if token != EOS]
    return Asked(ids, pictures, tuple(shown), is_whole=sure == len(tokens))


def submit(asked: Asked, name: str) -> Submit:
    pictures = tuple(_data(one) for one in asked.pictures)
    return Submit(name, SCOPE, asked.ids, pictures, SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS), 0.0)


def _data(one: Picture) -> PictureData:
    assert one.rendered is not None
    assert one.image_tokens is not None
    return PictureData(one.key, one.image_tokens, Tiles(one.rendered.pixels, one.rendered.num_tiles, TILE, TILE))


class Schedule:
    """Requests that come, go and are cancelled as the seed says, under limits and caches that the seed says too."""

    def __init__(self, runner: CountingRunner, pool: list[Asked], seed: int) -> None:
        chance = random.Random(seed)
        self._chance = chance
        turns = chance.randrange(0, len(pool), 3)
        some = [*pool[turns : turns + 3], *chance.sample(pool, 3)]
        self._names = {f"r{number}": chance.choice(some) for number in range(chance.randint(2, 9))}
        self._arrival = chance.choice([0.05, 0.5, 0.9])
        budget = chance.choice([3, 10, 64, 512])
        self._limits = Limits(
            max_num_seqs=chance.choice([1, 4, 8, 8]),
            max_num_batched_tokens=budget,
            max_num_tokens_beside_decode=chance.choice([budget, min(budget, 20)]),
            max_num_encoder_tokens=chance.choice([1, 8, 1000]),
            max_num_encoder_units=chance.choice([None, 2]),
            kv_capacity_tokens=chance.choice([MAX_MODEL_LEN, 2 * MAX_MODEL_LEN, 3 * MAX_MODEL_LEN, 8 * MAX_MODEL_LEN]),
        )
        self._runner = runner
        runner.set_kv_capacity(self._limits.kv_capacity_tokens)
        self._scheduler = ContinuousScheduler(self._limits)
        self.cache = FeatureCache(chance.choice([0, 4000, 10**7]))
        prefixes = PrefixCache(chance.choice([0, 60_000, 10**7]), 256)
        self._decodes_meanwhile = bool(seed % 2)
        # A clock that stands still: a decode step takes no time, and the next one is always due.
        self._core = EngineCore(config_of(Path()), runner, self._scheduler, self.cache, prefixes, now=lambda: 0.0)

    def run(self) -> Outcome:
        outcome = Outcome()
        waiting = list(self._names)
        for step in count():
            if waiting and (self._chance.random() < self._arrival or not self._core.has_work):
                name = waiting.pop(0)
                self._core.submit(submit(self._names[name], name))
                continue
            if not self._core.has_work:
                break
            if self._chance.random() < 0.03:
                self._core.cancel(self._chance.choice(list(self._names)))
            if self._chance.random() < 0.02:
                self._core.purge(SCOPE, None)
            self._step(outcome)
            assert step < 5000, "it never ends"
        for name, asked in self._names.items():
            if not asked.agrees(outcome.tokens.get(name, []), ended=name in outcome.ended):
                outcome.wrong.append(name)
        assert self._runner.is_empty
        return outcome

    def _step(self, outcome: Outcome) -> None:
        early: list[StepOutput] = []
        last = self._core.step(early.append if self._decodes_meanwhile else None)
        outcome.seen["meanwhile"] += len(early)
        for output in (*early, last):
            self._note(output, outcome)

    def _note(self, output: StepOutput, outcome: Outcome) -> None:
        for token in output.tokens:
            outcome.tokens.setdefault(token.request_id, []).append(token.token_id)
        for ended in output.ended:
            outcome.seen["cancelled" if ended.reason == "cancelled" else "ended"] += 1
            outcome.seen["cached_tokens"] += ended.cached_tokens
            if ended.reason != "cancelled":
                outcome.ended.add(ended.request_id)
        outcome.failed += output.failed


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """What the scheduler ordered, over all schedules of a test."""
    seen: Counter[str] = Counter()
    schedule = ContinuousScheduler.schedule

    def watched(self: ContinuousScheduler) -> ScheduledWork:
        work = schedule(self)
        seen["preempted"] += len(work.preempt)
        seen["batched"] += len(work.decode) > 1
        seen["cut"] += any(not chunk.is_last for chunk in work.prefill)
        return work

    monkeypatch.setattr(ContinuousScheduler, "schedule", watched)
    yield seen


def test_every_schedule_gives_the_tokens_of_generate(
    runner: CountingRunner, pool: list[Asked], work: Counter[str], num_schedules: int
):
    runner.num_encoded = 0
    for seed in range(num_schedules):
        outcome = Schedule(runner, pool, seed).run()
        assert not outcome.failed, (seed, outcome.failed)
        assert not outcome.wrong, (seed, outcome.wrong)
        work.update(outcome.seen)
    needed = ("ended", "cancelled", "cached_tokens", "preempted", "batched", "cut", "meanwhile")
    assert min(work[what] for what in needed) > 0
    assert runner.num_encoded > 0


@pytest.mark.parametrize("broken", ["decode_mask", "chunk_mask"])
def test_a_broken_mask_is_noticed(
    broken: str, runner: CountingRunner, pool: list[Asked], monkeypatch: pytest.MonkeyPatch
):
    correct = getattr(attention, broken)

    def sees_everything(*arguments: object) -> torch.Tensor | None:
        mask = correct(*arguments)
        return None if mask is None else torch.ones_like(mask)

    monkeypatch.setattr(attention, broken, sees_everything)
    assert any(Schedule(runner, pool, seed).run().wrong for seed in range(10))


def test_the_layers_that_are_compared_are_our_own(reference: Reference):
    model = cast("nn.Module", load(config_of(reference.folder)).model)
    assert any(isinstance(part, DecoderStack) for part in model.modules())


def test_the_reference_decides_nearly_all_tokens(pool: list[Asked]):
    """Else the tests above would compare little."""
    assert sum(asked.is_whole for asked in pool) > 0.9 * len(pool)


@pytest.mark.parametrize("num_at_once", [1, 3, 7])
def test_features_of_tiles_that_were_cached_equal_a_fresh_encode(runner: CountingRunner, num_at_once: int):
    tiles = picture(50, 7)
    units = units_of(SCOPE, _data(tiles), 0, TRAITS["idefics3"])
    cached = [
        encoded.features
        for start in range(0, len(units), num_at_once)
        for encoded in runner.encode(units[start : start + num_at_once])
    ]
    fresh = [encoded.features for encoded in runner.encode(units)]
    for one, other in zip(cached, fresh, strict=True):
        assert _difference(one, other) <= 1e-5
    assert _difference(cached[0], cached[1]) > 0.1


def _difference(one: Features, other: Features) -> float:
    assert isinstance(one.value, torch.Tensor)
    assert isinstance(other.value, torch.Tensor)
    return float((one.value - other.value).abs().max())
