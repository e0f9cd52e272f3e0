from __future__ import annotations

import asyncio
import dataclasses
import time

import pytest

from opsin.core.conversation import Conversation, Detail, MediaRef, Message, TextPart
from opsin.core.errors import ConfigError, ContextLengthExceeded, EngineError
from opsin.core.stages import Stage
from opsin.engine.api import (
    ChatPrompt,
    Delta,
    Engine,
    Finished,
    GenerationRequest,
    InputKind,
    Picture,
    PurgeOutcome,
    SamplingParams,
    TokenPrompt,
)
from opsin.engine.fake import FakeConfig, FakeEngine, FakeFailure
from tests.tries import tried


async def started(**config: object) -> FakeEngine:
    engine = FakeEngine(FakeConfig.model_validate(config))
    await engine.start()
    return engine


def request(
    name: str = "r", *, keys: tuple[str, ...] = (), num_ids: int = 10, sampling: SamplingParams | None = None
) -> GenerationRequest:
    return GenerationRequest(
        id=name,
        scope="scope",
        prompt=TokenPrompt(tuple(range(num_ids))),
        pictures=tuple(Picture(key=key, image_tokens=4, num_tiles=1, origin=key) for key in keys),
        sampling=sampling or SamplingParams(),
        submitted_at=time.monotonic(),
    )


async def answer(engine: Engine, asked: GenerationRequest) -> tuple[str, Finished]:
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


async def test_the_whole_answer():
    engine = await started(text="One two  three.")
    text, finished = await answer(engine, request())
    assert text == "One two  three."
    assert (finished.reason, finished.usage.prompt_tokens, finished.usage.completion_tokens) == ("stop", 10, 3)
    assert set(finished.stages_s) == {Stage.QUEUE, Stage.VISION_ENCODE, Stage.PREFILL, Stage.DECODE}


async def test_max_tokens_and_max_model_len_end_with_length():
    engine = await started(text="a b c d e", max_model_len=12)
    text, finished = await answer(engine, request(sampling=SamplingParams(max_tokens=1)))
    assert (text, finished.reason) == ("a", "length")
    text, finished = await answer(engine, request(sampling=SamplingParams(max_tokens=4)))
    assert (text, finished.reason) == ("a b", "length")


async def test_stop_strings():
    engine = await started(text="one two three")
    text, finished = await answer(engine, request(sampling=SamplingParams(stop=("wo th",))))
    assert (text, finished.reason, finished.usage.completion_tokens) == ("one t", "stop", 3)


async def test_known_pictures_are_not_encoded_again():
    engine = await started(encode_s=0.01)
    assert (await engine.reserve("one", ("a", "b"))).missing == {"a", "b"}
    _, finished = await answer(engine, request("one", keys=("a", "b")))
    assert finished.encoded_pictures_s == (0.01, 0.01)
    assert finished.usage.image_tokens == 8
    reservation = await engine.reserve("two", ("a", "c"))
    assert (reservation.leased, reservation.missing) == ({"a"}, {"c"})
    _, finished = await answer(engine, request("two", keys=("a", "c")))
    assert len(finished.encoded_pictures_s) == 1


async def test_purge_by_key_and_scope():
    engine = await started()
    await answer(engine, request(keys=("a", "b")))
    assert (await engine.purge("other", None)).tiers == {"features": PurgeOutcome.NONE}
    assert (await engine.purge("scope", "a")).tiers == {"features": PurgeOutcome.ERASED}
    assert (await engine.reserve("r", ("a", "b"))).leased == {"b"}
    assert (await engine.purge("scope", None)).tiers == {"features": PurgeOutcome.ERASED}
    assert (await engine.reserve("s", ("a", "b"))).leased == frozenset()


@tried
async def test_requests_beyond_max_num_seqs_wait_in_queue():
    engine = await started(text="a", ttft_s=0.3, max_num_seqs=1)
    tasks = [asyncio.create_task(answer(engine, request(name))) for name in ("one", "two")]
    await asyncio.sleep(0.02)
    stats = await engine.stats()
    assert (stats.running, stats.waiting) == (1, 1)
    (_, first), (_, second) = await asyncio.gather(*tasks)
    assert second.stages_s[Stage.QUEUE] > first.stages_s[Stage.QUEUE] + 0.2
    stats = await engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)


async def test_cancel_ends_the_stream_at_once():
    engine = await started(ttft_s=30.0)
    task = asyncio.create_task(answer(engine, request()))
    await asyncio.sleep(0.01)
    await engine.cancel("r")
    await engine.cancel("unknown")
    with pytest.raises(EngineError) as caught:
        await asyncio.wait_for(task, 1.0)
    assert caught.value.code == "request_cancelled"


async def test_messages_are_counted_in_words():
    engine = await started(input=InputKind.MESSAGES)
    parts = (TextPart("what is this"), MediaRef("file:x", Detail.AUTO, "messages[0]"))
    asked = GenerationRequest(
        id="r",
        scope="scope",
        prompt=ChatPrompt(Conversation((Message("user", parts),))),
        pictures=(Picture(key="a", image_tokens=None, num_tiles=None),),
        sampling=SamplingParams(),
        submitted_at=time.monotonic(),
    )
    _, finished = await answer(engine, asked)
    assert finished.usage.prompt_tokens == 3
    assert engine.capabilities().input is InputKind.MESSAGES


@pytest.mark.parametrize(
    ("failure", "text", "code"),
    [
        (FakeFailure.BEFORE_FIRST_TOKEN, "", "engine_died"),
        (FakeFailure.OUT_OF_MEMORY, "", "engine_out_of_memory"),
        (FakeFailure.MID_STREAM, "a", "engine_died"),
    ],
)
async def test_failures(failure: FakeFailure, text: str, code: str):
    engine = await started(text="a b c", failure=failure)
    given = ""
    with pytest.raises(EngineError) as caught:
        async for event in engine.submit(request()):
            assert isinstance(event, Delta)
            given += event.text
    assert (given, caught.value.code) == (text, code)


async def test_a_failing_start_and_the_reason():
    engine = FakeEngine(FakeConfig(failure=FakeFailure.START))
    with pytest.raises(ConfigError):
        await engine.start()
    assert engine.unready_reason() == "the fake engine was told not to start"


async def test_readiness_follows_start_and_close():
    engine = FakeEngine()
    assert engine.unready_reason() == "the engine has not been started"
    with pytest.raises(EngineError):
        await answer(engine, request())
    await engine.start()
    assert engine.unready_reason() is None
    await engine.close()
    await engine.close()
    with pytest.raises(EngineError):
        await answer(engine, request())


async def test_a_prompt_that_fills_the_context():
    engine = await started(max_model_len=10)
    with pytest.raises(ContextLengthExceeded):
        await answer(engine, request())


async def test_a_request_that_began_before_a_deletion_keeps_nothing():
    engine = await started()
    late = dataclasses.replace(request(keys=("a",)), began_at=time.monotonic())
    await engine.purge("scope", "a")
    await answer(engine, late)
    assert (await engine.reserve("r", ("a",))).leased == frozenset()
    await answer(engine, dataclasses.replace(request(keys=("a",)), began_at=time.monotonic()))
    assert (await engine.reserve("s", ("a",))).leased == {"a"}
