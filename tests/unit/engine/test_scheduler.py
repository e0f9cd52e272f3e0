from __future__ import annotations

from opsin.engine.api import SamplingParams
from opsin.engine.local.feature_cache import Features
from opsin.engine.local.messages import PictureData
from opsin.engine.local.scheduler import ScheduledWork, SequentialScheduler
from opsin.engine.local.sequence import Sequence, StageClock


def sequence(name: str, num_pictures: int = 0) -> Sequence:
    return Sequence(
        id=name,
        scope="scope",
        prompt_ids=(1, 2, 3),
        pictures=tuple(PictureData(f"{name}-{index}", 1, None) for index in range(num_pictures)),
        sampling=SamplingParams(),
        max_output_tokens=4,
        clock=StageClock(0.0),
    )


def test_nothing_to_do():
    assert SequentialScheduler().schedule() == ScheduledWork()


def test_a_request_goes_through_encode_prefill_decode():
    scheduler = SequentialScheduler()
    one = sequence("one", num_pictures=1)
    scheduler.add(one)
    assert scheduler.schedule() == ScheduledWork(encode=(one,))
    one.features.append(Features(None, 1, 1))
    assert scheduler.schedule() == ScheduledWork(prefill=(one,))
    one.output_ids.append(7)
    assert scheduler.schedule() == ScheduledWork(decode=(one,))


def test_the_second_waits_for_the_first():
    scheduler = SequentialScheduler()
    one, two = sequence("one"), sequence("two")
    scheduler.add(one)
    scheduler.add(two)
    assert scheduler.schedule().prefill == (one,)
    assert len(scheduler) == 2
    assert scheduler.remove("one") is one
    assert scheduler.schedule().prefill == (two,)


def test_a_waiting_request_can_be_removed():
    scheduler = SequentialScheduler()
    for name in ("one", "two", "three"):
        scheduler.add(sequence(name))
    scheduler.schedule()
    assert scheduler.remove("two") is not None
    assert scheduler.remove("two") is None
    assert [waiting.id for waiting in scheduler] == ["one", "three"]
