from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsin.core.stages import Stage
from opsin.engine.api import SamplingParams
from opsin.engine.local.feature_cache import Features, PictureUnits
from opsin.engine.local.messages import Tiles
from opsin.engine.local.prefix_cache import Prefix, PrefixMatch
from opsin.engine.local.sequence import Sequence, StageClock, Unit


def sequence(*, ignore_eos: bool = False, whole_pictures: bool = False) -> Sequence:
    """Twenty positions: picture a of two tiles of two tokens at 2 to 3 and 5 to 6, picture b of three at 10 to 12."""
    tiles = Tiles(bytes(3), 1, 1, 1)
    units = (Unit("x", 0, 0.5, 2, tiles), Unit("y", 0, 0.5, 2, tiles), Unit("z", 1, 1.0, 3, tiles))
    return Sequence(
        id="r",
        scope="scope",
        prompt_ids=tuple(range(20)),
        image_positions=(2, 3, 5, 6, 10, 11, 12),
        picture_keys=("a", "b"),
        origins=("of a", "of b"),
        units=units,
        sampling=SamplingParams(ignore_eos=ignore_eos),
        max_output_tokens=2,
        clock=StageClock(0.0),
        whole_pictures=whole_pictures,
    )


def with_features(one: Sequence) -> Sequence:
    for unit in one.units:
        one.features[unit.key] = Features(unit.key, 1, unit.num_tokens)
    return one


def test_the_clock_divides_time_without_gap_or_overlap():
    times = iter((2.0, 5.0, 6.0, 7.5, 9.0))
    clock = StageClock(1.0, now=lambda: next(times))
    for stage in (Stage.QUEUE, Stage.VISION_ENCODE, Stage.QUEUE, Stage.PREFILL, Stage.DECODE):
        clock.charge(stage)
    assert clock.stages_s == {Stage.QUEUE: 2.0, Stage.VISION_ENCODE: 3.0, Stage.PREFILL: 1.5, Stage.DECODE: 1.5}
    assert sum(clock.stages_s.values()) == 9.0 - 1.0


def test_a_clock_that_starts_in_the_future_charges_nothing():
    clock = StageClock(2.0, now=lambda: 1.0)
    clock.charge(Stage.QUEUE)
    assert clock.stages_s == {Stage.QUEUE: 0.0}


def test_a_sequence_decodes_when_only_its_newest_token_is_left():
    one = with_features(sequence())
    assert one.next_stage is Stage.PREFILL
    one.num_computed = 20
    one.output_ids.append(5)
    assert (one.next_stage, one.num_tokens) == (Stage.DECODE, 21)
    one.num_computed = 0  # preempted
    assert one.next_stage is Stage.PREFILL
    assert one.ids(18, 21) == (18, 19, 5)


def test_units_in_the_cached_prefix_are_not_missing():
    one = sequence()
    assert [unit.key for unit in one.missing()] == ["x", "y", "z"]
    prefix = Prefix(scope="scope", identity=one.identity, origins=frozenset(), value=None, size_bytes=1)
    one.prefix = PrefixMatch(prefix, 6)
    assert [unit.key for unit in one.missing()] == ["y", "z"]
    one.prefix = PrefixMatch(prefix, 19)
    assert one.next_stage is Stage.PREFILL
    assert one.next_position == 19


def test_image_tokens_are_those_that_the_encoder_filled():
    one = sequence()
    assert one.image_tokens == 0
    one.features["x"] = Features(None, 1, num_tokens=2)
    assert one.image_tokens == 2
    assert with_features(one).image_tokens == 7


def test_an_identity_is_ids_and_rows_of_units():
    identity = sequence().identity
    assert identity[:7] == (0, 1, ("x", 0), ("x", 1), 4, ("y", 0), ("y", 1))
    assert identity[10:14] == (("z", 0), ("z", 1), ("z", 2), 13)


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (0, 2, []),
        (0, 20, [("x", 0, 2), ("y", 0, 2), ("z", 0, 3)]),
        (3, 6, [("x", 1, 2), ("y", 0, 1)]),
        (11, 12, [("z", 1, 2)]),
        (13, 20, []),
    ],
)
def test_the_features_of_a_range_of_positions(start: int, stop: int, expected: list[tuple[str, int, int]]):
    slices = with_features(sequence()).features_between(start, stop)
    assert [(one.features.value, one.start, one.stop) for one in slices] == expected


@given(st.lists(st.integers(0, 20), min_size=2, max_size=8))
def test_features_of_all_chunks_are_those_of_the_whole(cuts: list[int]):
    one = with_features(sequence())
    bounds = [0, *sorted(cuts), 20]
    rows = [
        (part.features.value, row)
        for start, stop in pairwise(bounds)
        for part in one.features_between(start, stop)
        for row in range(part.start, part.stop)
    ]
    assert rows == [standing for standing in one.identity if not isinstance(standing, int)]


@pytest.mark.parametrize(("position", "before", "after"), [(10, 10, 10), (11, 10, 13), (12, 10, 13), (13, 13, 13)])
def test_where_prefill_may_pause(position: int, before: int, after: int):
    assert (sequence().cut(position), sequence().cut_after(position)) == (position, position)
    whole = sequence(whole_pictures=True)
    assert (whole.cut(position), whole.cut_after(position)) == (before, after)


def test_pixels_go_and_everything_else_stays():
    one = with_features(sequence())
    before = (one.identity, one.features_between(0, 20), one.holders("y"))
    one.drop_pixels()
    assert {unit.tiles for unit in one.units} == {None}
    assert (one.identity, one.features_between(0, 20), one.holders("y")) == before


def test_who_holds_a_unit():
    one = sequence()
    assert one.holders("y") == [PictureUnits("a", ("x", "y"), "of a")]
    one.forget("of a")
    assert one.holders("y") == []


@pytest.mark.parametrize(
    ("output_ids", "ignore_eos", "reason"),
    [([5], False, None), ([9], False, "stop"), ([9], True, None), ([5, 6], False, "length"), ([5, 9], False, "stop")],
)
def test_finish_reason(output_ids: list[int], ignore_eos: bool, reason: str | None):
    one = sequence(ignore_eos=ignore_eos)
    one.output_ids = output_ids
    assert one.finish_reason(frozenset({9})) == reason


def test_forget_one_key_or_all():
    one = sequence()
    one.forget("unknown")
    assert (one.uncached_keys, one.keeps_prefix) == (set(), True)
    one.forget("of a")
    assert (one.uncached_keys, one.keeps_prefix) == ({"a"}, False)
    one.forget(None)
    assert one.uncached_keys == {"a", "b"}
