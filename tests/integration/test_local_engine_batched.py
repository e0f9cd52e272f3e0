"""The engine process with many requests at once: what they share, and what they may not notice of each other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from opsin.core.stages import Stage
from opsin.engine.api import Delta, SamplingParams
from opsin.engine.local.engine import LocalEngine
from tests.integration.test_local_engine import Ids, answer, ids_of, request, without_pixels
from tests.tiny import EOS, Reference, config_of, picture, prompt

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENCODE_DELAY_S = 0.1  # of a picture; a tile has its part of it
STEP_DELAY_S = 0.01
ENDLESS = SamplingParams(temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(tmp_path_factory.mktemp("tiny-idefics3"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(reference: Reference) -> AsyncGenerator[LocalEngine, None]:
    delays = {Stage.VISION_ENCODE: ENCODE_DELAY_S}
    engine = LocalEngine(config_of(reference.folder, delays=delays, step_delay_s=STEP_DELAY_S, max_num_seqs=8), Ids)
    await engine.start()
    yield engine
    await engine.close()


async def test_eight_ragged_requests_at_once_give_the_tokens_of_generate(engine: LocalEngine, reference: Reference):
    asked = [tuple(picture(60 + index * 4 + each, 1 + each) for each in range(index % 4)) for index in range(8)]
    answers = await asyncio.gather(
        *(answer(engine, request(*pictures, text=3 + 5 * index)) for index, pictures in enumerate(asked))
    )
    for index, (pictures, (text, _)) in enumerate(zip(asked, answers, strict=True)):
        expected, sure = reference.greedy_and_sure(prompt(*pictures, text=3 + 5 * index), pictures)
        shown = [token for token in expected[:sure] if token != EOS]
        assert ids_of(text)[: len(shown)] == shown


async def test_they_run_side_by_side(engine: LocalEngine):
    sampling = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    tasks = [asyncio.create_task(answer(engine, request(sampling=sampling))) for _ in range(8)]
    await asyncio.sleep(0.1)
    stats = await engine.stats()
    assert (stats.running, stats.waiting) == (8, 0)
    await asyncio.gather(*tasks)


async def test_a_new_picture_that_eight_requests_bring_is_encoded_once(engine: LocalEngine):
    shared = picture(100, 3)
    answers = await asyncio.gather(*(answer(engine, request(shared, text=3 + index)) for index in range(8)))
    assert sorted(finished.encoded_tiles for _, finished in answers) == [0] * 7 + [3]


async def test_of_the_next_screenshot_only_the_changed_tiles_are_encoded(engine: LocalEngine):
    before, after = picture(110, 2), picture(110, 5)  # the same first two tiles
    _, finished = await answer(engine, request(before))
    assert finished.encoded_tiles == 2
    _, finished = await answer(engine, request(after))
    assert finished.encoded_tiles == 3
    reservation = await engine.reserve("both", (before.key, after.key))
    assert reservation.leased == {before.key, after.key}
    await engine.release("both")
    await engine.purge("scope", after.key)
    reservation = await engine.reserve("before", (before.key, after.key))
    assert reservation.leased == {before.key}
    again, finished = await answer(engine, request(without_pixels(before), name="before"))
    assert finished.encoded_tiles == 0
    assert again


async def test_cached_tokens_are_those_that_were_there(engine: LocalEngine):
    await engine.purge("scope", None)
    one = picture(120, 2)
    _, finished = await answer(engine, request(one, text=20))
    assert finished.usage.cached_tokens == 0
    _, finished = await answer(engine, request(one, text=20))
    assert finished.usage.cached_tokens == len(prompt(one, text=20)) - 1
    _, finished = await answer(engine, request(picture(121, 2), text=20))
    assert finished.usage.cached_tokens == 20


async def test_a_stream_goes_on_while_a_picture_is_encoded(engine: LocalEngine):
    """Eight pictures are eight runs of the encoder, and between each two of them the stream has its turn."""
    arrivals: list[float] = []

    async def stream() -> None:
        async for event in engine.submit(request(sampling=ENDLESS, text=40)):
            if isinstance(event, Delta):
                arrivals.append(time.monotonic())

    task = asyncio.create_task(stream())
    while len(arrivals) < 3:  # noqa: ASYNC110 (a stream has no event for it)
        await asyncio.sleep(0.01)
    began = time.monotonic()
    pictures = tuple(picture(130 + index) for index in range(8))
    _, finished = await answer(engine, request(*pictures))
    ended = time.monotonic()
    assert len(finished.encoded_pictures_s) == 8
    during = [arrival for arrival in arrivals if began <= arrival <= ended]
    assert len(during) >= 7
    await task
