"""Which request brings which picture: never again when cold, all known when warm, Zipf's law in between."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from opsin.bench.config import checked
from opsin.bench.record import Kind
from opsin.bench.workload import Workload, plan
from opsin.core.errors import ConfigError


def of(counts: list[int], available: int | None = None, **values: Any) -> Workload:
    return plan(checked({"url": "http://h", **values}), counts, available)


def numbers(workload: Workload) -> list[int]:
    return [number for ask in workload.asks for number in ask.pictures]


def test_cold_pictures_never_come_again_in_any_level_or_warm_up() -> None:
    workload = of([50, 50, 50], images="0-3", resolution="64x64,128x64:2")
    assert len(set(numbers(workload))) == len(numbers(workload)) == len(workload.pictures)


def test_warm_pictures_were_all_seen_before_the_clock() -> None:
    workload = of([30, 30], images="1-2", cache="warm:5")
    primed = [number for ask in workload.prime for number in ask.pictures]
    assert len(set(primed)) == len(primed) == 5
    measured = {number for level in workload.levels for ask in level for number in ask.pictures}
    assert measured == set(primed)


def test_warm_up_has_pictures_of_its_own_and_every_shape() -> None:
    workload = of([20], images="1-3", resolution="64x64:9,128x128:1", cache="warm:4")
    own = {number for ask in workload.warmup for number in ask.pictures}
    others = {number for asks in (workload.prime, *workload.levels) for ask in asks for number in ask.pictures}
    assert not own & others
    assert {len(ask.pictures) for ask in workload.warmup} == {1, 2, 3}
    assert {workload.pictures[number].width for number in own} == {64, 128}


def test_mixed_pictures_follow_zipf_and_each_level_has_its_own() -> None:
    workload = of([4000, 4000], cache="mixed:10:1")
    first, second = (Counter(number for ask in level for number in ask.pictures) for level in workload.levels)
    assert not first.keys() & second.keys()
    assert len(first) == 10
    ranked = [count for _, count in first.most_common()]
    harmonic = sum(1 / rank for rank in range(1, 11))
    assert abs(ranked[0] / 4000 - 1 / harmonic) < 0.03
    assert abs(ranked[1] / 4000 - 0.5 / harmonic) < 0.03


def test_a_pool_has_the_shares_of_sizes_as_near_as_it_can() -> None:
    workload = of([1], cache="warm:8", resolution="64x64:3,128x128:1", num_warmups=0)
    assert Counter(spec.width for spec in workload.pictures) == {64: 6, 128: 2}


def test_sizes_follow_their_shares() -> None:
    workload = of([4000], resolution="64x64:3,128x128:1", num_warmups=0)
    assert abs(sum(spec.width == 128 for spec in workload.pictures) / 4000 - 0.25) < 0.03


def test_no_two_questions_are_alike() -> None:
    workload = of([500], images="0")
    words = [ask.words for ask in workload.asks]
    assert len(set(words)) == len(words)
    assert {len(text.split()) for text in words} == {16}


def test_a_level_asks_the_same_whatever_levels_follow() -> None:
    alone, followed = of([40], images="1-3"), of([40, 99], images="1-3")
    shapes = [[[spec.width for spec in map(one.pictures.__getitem__, ask.pictures)] for ask in one.levels[0]]
              for one in (alone, followed)]  # fmt: skip
    assert shapes[0] == shapes[1]


def test_a_folder_that_is_too_small_is_refused_and_not_sent_twice() -> None:
    with pytest.raises(ConfigError, match=r"--cache cold needs 14 different pictures for this run, and None has 13"):
        of([10], available=13)
    assert len(of([10], available=14).pictures) == 14


def test_warm_ups_are_no_more_than_the_load() -> None:
    assert len(of([2]).warmup) == 2
    assert len(of([100]).warmup) == 4
    assert len(of([100], num_warmups=0).warmup) == 0
    assert all(ask.kind is Kind.WARMUP for ask in of([9]).warmup)


def test_probes_only_when_asked_for() -> None:
    assert of([1]).probes == ()
    probes = of([1], probe_rate=1).probes
    assert {ask.pictures for ask in probes} == {()}
    assert {ask.output_len for ask in probes} == {1}
