"""Order, turns and limits of a step, as far as ``test_local_core.py`` does not show them at work."""

from __future__ import annotations

import pytest

from opsin.engine.api import SamplingParams
from opsin.engine.local.feature_cache import Features
from opsin.engine.local.kv_grid import BLOCK_TOKENS, cells, rounded
from opsin.engine.local.messages import Tiles
from opsin.engine.local.scheduler import ContinuousScheduler, EncodeItem, PrefillChunk, ScheduledWork
from opsin.engine.local.sequence import Sequence, StageClock, Unit
from tests.unit.engine.test_local_core import limits_of


def sequence(name: str, *shapes: int, text: int = 3, whole_pictures: bool = False) -> Sequence:
    """Pictures of two tokens each, ``shapes`` pixels wide and high, and then text."""
    num_image = 2 * len(shapes)
    return Sequence(
        id=name,
        scope="scope",
        prompt_ids=(0,) * num_image + (1,) * text,
        image_positions=tuple(range(num_image)),
        picture_keys=tuple(f"{name}-{index}" for index in range(len(shapes))),
        origins=("",) * len(shapes),
        units=tuple(
            Unit(f"{name}-{index}", index, 1.0, 2, Tiles(bytes(3 * side * side), 1, side, side))
            for index, side in enumerate(shapes)
        ),
        sampling=SamplingParams(),
        max_output_tokens=4,
        clock=StageClock(0.0),
        whole_pictures=whole_pictures,
    )


def encoded(one: Sequence) -> Sequence:
    one.features.update({unit.key: Features(None, 1, 2) for unit in one.units})
    return one


def decoding(one: Sequence) -> Sequence:
    one.num_computed = len(one.prompt_ids)
    one.output_ids.append(7)
    return one


def scheduler_of(*sequences: Sequence, **limits: int) -> ContinuousScheduler:
    scheduler = ContinuousScheduler(limits_of(**limits))
    for one in sequences:
        scheduler.add(one)
    return scheduler


def test_nothing_to_do():
    assert scheduler_of().schedule() == ScheduledWork()


def test_a_request_goes_through_encode_prefill_decode():
    one = sequence("one", 4)
    scheduler = scheduler_of(one)
    assert scheduler.schedule() == ScheduledWork(encode=(EncodeItem(one, one.units[0]),))
    encoded(one)
    assert scheduler.schedule() == ScheduledWork(prefill=(PrefillChunk(one, 0, 5),))
    decoding(one)
    assert scheduler.schedule() == ScheduledWork(decode=(one,))


def test_no_more_than_max_num_seqs_run():
    one, two = sequence("one"), sequence("two")
    scheduler = scheduler_of(one, two)
    assert [chunk.sequence for chunk in scheduler.schedule().prefill] == [one]
    assert len(scheduler) == 2
    assert scheduler.remove("one") is one
    assert [chunk.sequence for chunk in scheduler.schedule().prefill] == [two]


def test_a_waiting_request_can_be_removed():
    scheduler = scheduler_of(*(sequence(name) for name in ("one", "two", "three")))
    scheduler.schedule()
    assert scheduler.remove("two") is not None
    assert scheduler.remove("two") is None
    assert [waiting.id for waiting in scheduler] == ["one", "three"]


def test_several_prompts_share_the_budget_and_the_last_is_cut():
    one, two, three = (sequence(name, text=6) for name in ("one", "two", "three"))
    work = scheduler_of(one, two, three, max_num_seqs=3, max_num_batched_tokens=10).schedule()
    assert [(chunk.sequence.id, chunk.start, chunk.stop) for chunk in work.prefill] == [("one", 0, 6), ("two", 0, 4)]


def test_the_first_prompt_goes_whole_where_nobody_decodes():
    one, two = sequence("one", text=30), sequence("two", text=30)
    limits = {"max_num_seqs": 3, "max_num_batched_tokens": 40, "max_num_tokens_beside_decode": 8}
    (chunk,) = scheduler_of(one, two, **limits).schedule().prefill
    assert (chunk.sequence, chunk.start, chunk.stop) == (one, 0, 30)
    one, two = sequence("one", text=3), sequence("two", text=30)
    chunks = scheduler_of(one, two, **limits).schedule().prefill
    assert [(chunk.sequence, chunk.stop) for chunk in chunks] == [(one, 3), (two, 5)]
    stream, two = decoding(sequence("stream")), sequence("two", text=30)
    (chunk,) = scheduler_of(stream, two, **limits).schedule().prefill
    assert (chunk.start, chunk.stop) == (0, 7)


def test_those_who_decode_take_of_the_budget():
    stream, prompt = decoding(sequence("stream")), sequence("prompt", text=20)
    (chunk,) = scheduler_of(stream, prompt, max_num_seqs=2, max_num_batched_tokens=8).schedule().prefill
    assert (chunk.start, chunk.stop) == (0, 7)


def test_a_micro_batch_has_one_shape():
    one, two = sequence("one", 4, 4), sequence("two", 6, 4)
    work = scheduler_of(one, two, max_num_seqs=2, max_num_encoder_tokens=100).schedule()
    assert [item.unit.key for item in work.encode] == ["one-0", "one-1"]


def test_a_micro_batch_has_so_many_units_at_most():
    one = sequence("one", 4, 4, 4)
    work = scheduler_of(one, max_num_encoder_tokens=100, max_num_encoder_units=2).schedule()
    assert [item.unit.key for item in work.encode] == ["one-0", "one-1"]


def test_encoder_and_prefill_take_turns_while_somebody_decodes():
    stream, picture, prompt = decoding(sequence("stream")), sequence("picture", 4), sequence("prompt", text=50)
    scheduler = scheduler_of(stream, picture, prompt, max_num_seqs=3, max_num_batched_tokens=4)
    turns = [scheduler.schedule() for _ in range(4)]
    assert [bool(work.encode) for work in turns] == [False, True, False, True]
    assert [bool(work.prefill) for work in turns] == [True, False, True, False]


@pytest.mark.parametrize(("budget", "stops"), [(1, 2), (2, 2), (3, 2), (4, 4), (5, 5)])
def test_a_picture_that_has_to_stay_whole_is_not_cut(budget: int, stops: int):
    one = encoded(sequence("one", 4, 4, whole_pictures=True))
    (chunk,) = scheduler_of(one, max_num_batched_tokens=budget).schedule().prefill
    assert chunk.stop == stops


def test_rows_are_as_long_as_the_longest():
    assert cells([]) == 0
    assert cells([1, 5]) == 2 * BLOCK_TOKENS
    assert cells([BLOCK_TOKENS + 1]) == rounded(BLOCK_TOKENS + 1) == 2 * BLOCK_TOKENS
