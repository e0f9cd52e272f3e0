from __future__ import annotations

import pytest

from opsin.core.stages import Stage
from opsin.engine.api import SamplingParams
from opsin.engine.local.feature_cache import Features
from opsin.engine.local.messages import PictureData
from opsin.engine.local.sequence import Sequence, StageClock


def sequence(*, ignore_eos: bool = False) -> Sequence:
    pictures = (PictureData("a", 4, None), PictureData("b", 8, None))
    return Sequence(
        id="r",
        scope="scope",
        prompt_ids=tuple(range(20)),
        pictures=pictures,
        sampling=SamplingParams(ignore_eos=ignore_eos),
        max_output_tokens=2,
        clock=StageClock(0.0),
    )


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


def test_kv_holds_the_prompt_and_all_but_the_newest_token():
    one = sequence()
    assert (one.kv_tokens, one.image_tokens) == (0, 0)
    one.features += [Features(None, 1, num_tokens=4), Features(None, 1, num_tokens=8)]
    assert (one.kv_tokens, one.image_tokens) == (0, 12)
    one.output_ids.append(5)
    assert (one.kv_tokens, one.position) == (20, 20)
    one.output_ids.append(6)
    assert (one.kv_tokens, one.position) == (21, 21)


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
    assert one.uncached_keys == set()
    one.forget("a")
    assert one.uncached_keys == {"a"}
    one.forget(None)
    assert one.uncached_keys == {"a", "b"}
