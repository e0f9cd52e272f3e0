"""The local engine as a real process with a tiny random Idefics3, against Transformers' own ``generate``.

One engine serves all tests of this file, in order: the last ones kill and close it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from opsin.core.errors import ConfigError, ContextLengthExceeded, EngineError
from opsin.core.stages import Stage
from opsin.engine.api import (
    Delta,
    Finished,
    GenerationRequest,
    Picture,
    PurgeOutcome,
    SamplingParams,
    TokenPrompt,
)
from opsin.engine.local.config import LocalEngineConfig
from opsin.engine.local.engine import LocalEngine
from opsin.media.types import RenderedPicture
from opsin.vision.plan import Size
from tests.tiny import EOS, MAX_MODEL_LEN, TILE, TOKENS_PER_TILE, Reference, config_of, picture, prompt
from tests.tries import tried

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENCODE_DELAY_S = 0.05
STEP_DELAY_S = 0.02


def slow(folder: Path, **changes: object) -> LocalEngineConfig:
    """Slow enough to be watched, and one request at a time."""
    faults = {"delays": {Stage.VISION_ENCODE: ENCODE_DELAY_S}, "step_delay_s": STEP_DELAY_S, "max_num_seqs": 1}
    return config_of(folder, **{**faults, **changes})


GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


class Ids:
    """A detokenizer that shows ids: ``17 4 90``."""

    def push(self, token_id: int) -> str:
        return f"{token_id} "

    def flush(self) -> str:
        return ""


def without_pixels(one: Picture) -> Picture:
    return Picture(key=one.key, image_tokens=one.image_tokens, num_tiles=one.num_tiles)


_names = (f"request-{number}" for number in range(10**6))


def request(
    *pictures: Picture, sampling: SamplingParams = GREEDY, text: int = 6, name: str | None = None
) -> GenerationRequest:
    return GenerationRequest(
        id=name or next(_names),
        scope="scope",
        prompt=TokenPrompt(prompt(*pictures, text=text)),
        pictures=pictures,
        sampling=sampling,
        submitted_at=time.monotonic(),
    )


async def answer(engine: LocalEngine, asked: GenerationRequest) -> tuple[str, Finished]:
    text, finished = "", None
    async for event in engine.submit(asked):
        assert finished is None
        if isinstance(event, Delta):
            assert event.text
            text += event.text
        else:
            finished = event
    assert finished is not None
    return text, finished


def ids_of(text: str) -> list[int]:
    return [int(word) for word in text.split()]


async def until_ready(engine: LocalEngine) -> None:
    async with asyncio.timeout(300):
        while engine.unready_reason() is not None:  # noqa: ASYNC110 (the contract has no event for it)
            await asyncio.sleep(0.1)


def children() -> list[psutil.Process]:
    """Engine workers of this process; other tests may have servers, with workers of their own."""
    return [child for child in psutil.Process().children() if "opsin.engine.local.worker" in child.cmdline()]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(tmp_path_factory.mktemp("tiny-idefics3"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(reference: Reference) -> AsyncGenerator[LocalEngine, None]:
    engine = LocalEngine(slow(reference.folder), Ids)
    assert engine.unready_reason() == "the engine has not been started"
    await engine.start()
    yield engine
    await engine.close()


async def test_capabilities_come_from_the_worker(engine: LocalEngine):
    capabilities = engine.capabilities()
    assert engine.unready_reason() is None
    assert (capabilities.device, capabilities.max_num_seqs, capabilities.max_model_len) == ("cpu", 1, MAX_MODEL_LEN)
    assert capabilities.load_time_s is not None
    assert capabilities.load_time_s > 0


@pytest.mark.parametrize(
    "pictures",
    [(), (picture(1),), (picture(2), picture(3)), (picture(4, 5),), (picture(5, 5), picture(6), picture(7, 3))],
    ids=["text", "one", "two", "split", "mixed"],
)
async def test_greedy_tokens_equal_generate(engine: LocalEngine, reference: Reference, pictures: tuple[Picture, ...]):
    asked = request(*pictures)
    text, finished = await answer(engine, asked)
    expected = reference.greedy(prompt(*pictures), pictures)
    assert ids_of(text) == [token for token in expected if token != EOS]
    assert finished.reason == ("stop" if EOS in expected else "length")
    assert finished.usage.completion_tokens == len(expected)
    assert finished.usage.prompt_tokens == len(prompt(*pictures))
    assert finished.usage.image_tokens == sum(one.num_tiles or 0 for one in pictures) * TOKENS_PER_TILE
    assert len(finished.encoded_pictures_s) == len(pictures)


async def test_pictures_and_their_order_matter(reference: Reference):
    one, two = picture(2), picture(3)
    ids = prompt(one, two)
    assert reference.greedy(ids, (one, two)) != reference.greedy(ids, (two, one))


async def test_a_known_picture_is_not_encoded_again(engine: LocalEngine):
    first, second = picture(11, 2), picture(12)
    text, finished = await answer(engine, request(first, second))
    assert len(finished.encoded_pictures_s) == 2
    reservation = await engine.reserve("again", (first.key, second.key, "unknown"))
    assert reservation.leased == {first.key, second.key}
    assert reservation.missing == {"unknown"}
    again, finished = await answer(engine, request(without_pixels(first), without_pixels(second), name="again"))
    assert again == text
    assert finished.encoded_pictures_s == ()
    assert finished.stages_s.get(Stage.VISION_ENCODE, 0.0) == 0.0


async def test_a_picture_sent_again_with_pixels_is_a_hit_too(engine: LocalEngine):
    one = picture(13)
    text, _ = await answer(engine, request(one))
    again, finished = await answer(engine, request(one))
    assert (again, finished.encoded_pictures_s) == (text, ())


async def test_purge_makes_a_picture_unknown(engine: LocalEngine):
    one = picture(14)
    await answer(engine, request(one))
    assert (await engine.purge("other", one.key)).tiers == {"features": PurgeOutcome.NONE}
    assert (await engine.purge("scope", one.key)).tiers == {"features": PurgeOutcome.ERASED}
    assert (await engine.reserve("purged", (one.key,))).leased == frozenset()
    with pytest.raises(EngineError) as caught:
        await answer(engine, request(without_pixels(one), name="purged"))
    assert caught.value.code == "engine_features_lost"
    await engine.purge("scope", None)
    assert (await engine.stats()).cache_bytes == 0


async def test_stage_times_add_up(engine: LocalEngine):
    started = time.monotonic()
    _, finished = await answer(engine, request(picture(15), picture(16)))
    total_s = time.monotonic() - started
    stages_s = finished.stages_s
    assert set(stages_s) == {Stage.QUEUE, Stage.VISION_ENCODE, Stage.PREFILL, Stage.DECODE}
    assert stages_s[Stage.VISION_ENCODE] >= 2 * ENCODE_DELAY_S
    assert finished.usage.completion_tokens is not None
    assert stages_s[Stage.DECODE] >= (finished.usage.completion_tokens - 1) * STEP_DELAY_S
    assert sum(stages_s.values()) <= total_s
    assert sum(finished.encoded_pictures_s) == pytest.approx(stages_s[Stage.VISION_ENCODE], rel=0.2)


@tried
async def test_the_second_of_two_requests_queues(engine: LocalEngine):
    sampling = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
    tasks = [asyncio.create_task(answer(engine, request(sampling=sampling))) for _ in range(2)]
    async with asyncio.timeout(20):
        while not (stats := await engine.stats()).waiting:  # noqa: ASYNC110 (nobody is told)
            await asyncio.sleep(0.01)
    assert (stats.running, stats.waiting) == (1, 1)
    assert stats.process_memory_bytes is not None
    assert stats.process_memory_bytes > 10**7
    (_, first), (_, second) = await asyncio.gather(*tasks)
    assert second.stages_s[Stage.QUEUE] >= first.stages_s[Stage.DECODE]
    stats = await engine.stats()
    assert (stats.running, stats.waiting, stats.kv_tokens, stats.kv_image_tokens) == (0, 0, 0, 0)


async def test_a_reservation_does_not_wait_for_a_step(engine: LocalEngine):
    pictures = tuple(picture(seed) for seed in range(40, 48))
    task = asyncio.create_task(answer(engine, request(*pictures)))
    await asyncio.sleep(0.02)
    await engine.reserve("quick", ("unknown",))
    await engine.release("quick")
    assert not task.done()
    await task


@tried
async def test_closing_the_stream_cancels_in_the_middle_of_decode(engine: LocalEngine):
    endless = SamplingParams(temperature=0.0, ignore_eos=True)
    async with aclosing(engine.submit(request(sampling=endless))) as stream:
        async for _ in stream:
            break
    started = time.monotonic()
    await answer(engine, request(sampling=SamplingParams(temperature=0.0, max_tokens=1)))
    # The abandoned request had 150 decode steps of at least 0.02 s left.
    assert time.monotonic() - started < 3.0
    assert (await engine.stats()).running == 0


async def test_cancel_by_id_ends_the_stream(engine: LocalEngine):
    asked = request(sampling=SamplingParams(temperature=0.0, ignore_eos=True))
    with pytest.raises(EngineError) as caught:
        async for _ in engine.submit(asked):
            await engine.cancel(asked.id)
    assert caught.value.code == "request_cancelled"
    await engine.cancel("unknown")


async def test_a_seed_repeats_itself(engine: LocalEngine):
    def sampling(seed: int) -> SamplingParams:
        return SamplingParams(temperature=1.0, seed=seed, max_tokens=12, ignore_eos=True)

    first, again, other = [(await answer(engine, request(sampling=sampling(seed))))[0] for seed in (1, 1, 2)]
    assert first == again
    assert first != other


async def test_a_stop_string_across_tokens_is_found_and_not_emitted(engine: LocalEngine):
    greedy = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    whole, _ = await answer(engine, request(sampling=greedy))
    ids = ids_of(whole)
    stop = f"{ids[4]} {ids[5]}"
    text, finished = await answer(
        engine, request(sampling=SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, stop=(stop,)))
    )
    assert text == whole[: whole.index(stop)]
    assert finished.reason == "stop"
    assert finished.usage.completion_tokens == len(ids_of(text)) + 2
    assert finished.stages_s[Stage.DECODE] > 0


async def test_min_tokens_keeps_eos_away(engine: LocalEngine):
    sampling = SamplingParams(temperature=2.0, seed=3, min_tokens=10, max_tokens=10)
    text, finished = await answer(engine, request(sampling=sampling))
    assert len(ids_of(text)) == 10
    assert EOS not in ids_of(text)
    assert finished.reason == "length"


async def test_max_model_len_ends_with_length(engine: LocalEngine):
    sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=50)
    text, finished = await answer(engine, request(text=MAX_MODEL_LEN - 3, sampling=sampling))
    assert (len(ids_of(text)), finished.reason) == (3, "length")


async def test_a_prompt_that_fills_the_context_is_refused(engine: LocalEngine):
    with pytest.raises(ContextLengthExceeded, match=f"max_model_len is {MAX_MODEL_LEN}"):
        await answer(engine, request(text=MAX_MODEL_LEN))
    await answer(engine, request())


async def test_a_bug_in_one_request_leaves_the_engine_alive(engine: LocalEngine):
    good = picture(20)
    broken = Picture(key="broken", image_tokens=4, num_tiles=1, rendered=RenderedPicture(b"123", 1, Size(TILE, TILE)))
    with pytest.raises(EngineError) as caught:
        await answer(engine, request(broken))
    assert caught.value.code == "engine_internal_error"
    await answer(engine, request(good))


async def test_another_model_type_is_refused_by_name(reference: Reference):
    engine = LocalEngine(slow(reference.folder, model_type="mllama"), Ids)
    with pytest.raises(ConfigError, match="'mllama' is not served by the local engine"):
        await engine.start()
    assert "'mllama'" in (engine.unready_reason() or "")
    await engine.close()


async def test_a_start_that_takes_too_long_leaves_no_process(reference: Reference):
    before = {child.pid for child in children()}
    engine = LocalEngine(slow(reference.folder, start_timeout_s=0.1), Ids)
    with pytest.raises(EngineError) as caught:
        await engine.start()
    assert caught.value.code == "engine_start_timeout"
    assert {child.pid for child in children()} == before
    await engine.close()


async def test_the_worker_dies_with_its_parent():
    script = (
        "import asyncio, time\n"
        "from opsin.engine.local.process import WorkerProcess\n"
        "async def main():\n"
        "    worker = await WorkerProcess.spawn()\n"
        "    print(worker.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    worker = psutil.Process(int(await parent.stdout.readline()))
    parent.kill()
    await parent.wait()
    # Gone, or a zombie that nobody reaps where PID 1 does not.
    _, alive = psutil.wait_procs([worker], timeout=10)
    assert all(process.status() == psutil.STATUS_ZOMBIE for process in alive)


async def test_a_killed_worker_fails_its_requests_once_and_comes_back(engine: LocalEngine):
    endless = SamplingParams(temperature=0.0, ignore_eos=True)
    one = picture(30)
    await answer(engine, request(one))
    running, waiting = request(sampling=endless), request(sampling=endless)
    tasks = [asyncio.create_task(answer(engine, asked)) for asked in (running, waiting)]
    await asyncio.sleep(0.2)
    (worker,) = children()
    os.kill(worker.pid, signal.SIGKILL)
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    assert [getattr(result, "code", result) for result in results] == ["engine_died", "engine_died"]
    assert "restarted" in (engine.unready_reason() or "")
    with pytest.raises(EngineError):
        await answer(engine, request())
    with pytest.raises(EngineError):
        await engine.reserve("down", (one.key,))
    assert (await engine.purge("scope", one.key)).tiers == {"features": PurgeOutcome.NONE}
    await until_ready(engine)
    assert (await engine.reserve("new", (one.key,))).leased == frozenset()
    text, _ = await answer(engine, request(one))
    assert text


async def test_close_ends_requests_and_leaves_no_process_and_no_socket(engine: LocalEngine):
    task = asyncio.create_task(answer(engine, request(sampling=SamplingParams(temperature=0.0, ignore_eos=True))))
    await asyncio.sleep(0.1)
    (worker,) = children()
    num_fds = psutil.Process().num_fds()
    await engine.close()
    with pytest.raises(EngineError) as caught:
        await task
    assert caught.value.code == "engine_closed"
    assert not worker.is_running()
    assert psutil.Process().num_fds() < num_fds
    await engine.close()
    assert engine.unready_reason() == "the engine is closed"
