"""What all remote engines do alike, on an answer that a test scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from opsin.core.conversation import Conversation
from opsin.core.errors import Code, EngineError
from opsin.core.stages import Stage
from opsin.engine.api import (
    Capabilities,
    ChatPrompt,
    Delta,
    Finished,
    GenerationRequest,
    InputKind,
    PurgeOutcome,
    Remote,
    SamplingParams,
    Usage,
)
from opsin.engine.remote import RemoteEngine, with_rest

HELLO = Delta("Hello.", 1)
WHOLE = Finished("stop", Usage(3, 1, None), stages_s={})
UNREACHABLE = EngineError("nobody answers", code=Code.UPSTREAM_UNAVAILABLE)


class ScriptedAnswer:
    """Says hello, then waits for ``cancel`` if it is told to, then ends or fails."""

    def __init__(self, *, answered: bool = True, error: EngineError | None = None, waits: bool = False) -> None:
        self.answered = answered
        self.error = error
        self.stopped = asyncio.Event()
        self.closed = 0
        if not waits:
            self.stopped.set()

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        if self.answered:
            yield HELLO
        await self.stopped.wait()
        if self.error is not None:
            raise self.error

    def finish(self, took_s: float) -> Finished:
        return with_rest(WHOLE, "scripted", took_s)

    def cancel(self) -> None:
        self.error = EngineError("cancelled", code=Code.REQUEST_CANCELLED)
        self.stopped.set()

    async def close(self) -> None:
        self.closed += 1


class ScriptedEngine(RemoteEngine[ScriptedAnswer]):
    """Gives the one answer; ``looked`` is what the next look finds."""

    def __init__(self, answer: ScriptedAnswer, looked: str | None = None, watched: bool = True) -> None:
        super().__init__()
        self.answer = answer
        self.looked = looked
        self.watched = watched
        self.disconnected = 0

    async def start(self) -> None:
        if self.watched:
            self._watch_every(0.05)
        else:
            self._unready = None

    def capabilities(self) -> Capabilities:
        return Capabilities(
            input=InputKind.MESSAGES,
            max_model_len=None,
            max_num_seqs=None,
            stages=frozenset(),
            reports_cache=False,
            reports_kv=False,
        )

    def _ask(self, request: GenerationRequest) -> ScriptedAnswer:
        return self.answer

    async def _look(self) -> str | None:
        return self.looked

    async def _disconnect(self) -> None:
        self.disconnected += 1


def a_request() -> GenerationRequest:
    return GenerationRequest(
        id="r1",
        scope="s",
        prompt=ChatPrompt(Conversation(())),
        pictures=(),
        sampling=SamplingParams(),
        submitted_at=0.0,
    )


async def test_an_answer_ends_in_what_it_took() -> None:
    engine = ScriptedEngine(answer := ScriptedAnswer())
    await engine.start()
    delta, end = [event async for event in engine.submit(a_request())]
    assert delta is HELLO
    assert isinstance(end, Finished)
    assert end.remote is not None
    assert (end.remote.source, end.remote.num_by_name) == ("scripted", 0)
    assert answer.closed == 1
    assert (await engine.stats()).running == 0
    await engine.close()


@pytest.mark.parametrize("closes", [False, True], ids=["cancel", "close"])
async def test_cancel_and_close_end_what_runs(closes: bool) -> None:
    engine = ScriptedEngine(answer := ScriptedAnswer(waits=True))
    await engine.start()
    async with aclosing(engine.submit(a_request())) as events:
        assert await anext(events) is HELLO
        assert (await engine.stats()).running == 1
        await (engine.close() if closes else engine.cancel("r1"))
        with pytest.raises(EngineError) as caught:
            await anext(events)
    assert caught.value.code is Code.REQUEST_CANCELLED
    assert ((await engine.stats()).running, answer.closed) == (0, 1)
    await engine.close()


async def test_a_reader_that_leaves_frees_the_connection() -> None:
    engine = ScriptedEngine(answer := ScriptedAnswer(waits=True))
    async with aclosing(engine.submit(a_request())) as events:
        await anext(events)
    assert answer.closed == 1


@pytest.mark.parametrize(
    ("answered", "code", "reason"),
    [
        (False, Code.UPSTREAM_UNAVAILABLE, "nobody answers"),
        (True, Code.UPSTREAM_UNAVAILABLE, None),
        (False, Code.UPSTREAM_TIMEOUT, None),
    ],
)
async def test_only_a_request_that_found_nobody_tells_of_ill_health(
    answered: bool, code: Code, reason: str | None
) -> None:
    engine = ScriptedEngine(ScriptedAnswer(answered=answered, error=EngineError("nobody answers", code=code)))
    await engine.start()
    with pytest.raises(EngineError):
        _ = [event async for event in engine.submit(a_request())]
    assert engine.unready_reason() == reason
    await engine.close()


async def test_without_a_watch_one_failure_says_nothing_for_good() -> None:
    engine = ScriptedEngine(ScriptedAnswer(answered=False, error=UNREACHABLE), watched=False)
    await engine.start()
    with pytest.raises(EngineError):
        _ = [event async for event in engine.submit(a_request())]
    assert engine.unready_reason() is None
    await engine.close()


async def test_the_watch_tells_both_ways_and_ends_with_the_engine() -> None:
    engine = ScriptedEngine(ScriptedAnswer(), looked="it is loading")
    assert engine.unready_reason() == "the engine is not started"
    await engine.start()
    assert engine.unready_reason() is None
    await _until_reason(engine, "it is loading")
    engine.looked = None
    await _until_reason(engine, None)
    await engine.close()
    await engine.close()
    assert engine.unready_reason() == "the engine is closed"
    assert engine.disconnected == 2


async def test_nothing_is_known_of_its_caches() -> None:
    engine = ScriptedEngine(ScriptedAnswer())
    assert (await engine.reserve("r1", ["a", "b"])).missing == {"a", "b"}
    await engine.release("r1")
    await engine.cancel("unknown")
    assert (await engine.purge("s", None)).tiers == {"upstream": PurgeOutcome.UNREACHABLE}


@pytest.mark.parametrize(("took_s", "told", "rest_s"), [(5.0, 4.0, 1.0), (3.0, 0.0, 3.0)])
def test_stages_longer_than_the_whole_are_not_believed(took_s: float, told: float, rest_s: float) -> None:
    finished = Finished("stop", Usage(3, 1, None), stages_s={Stage.PREFILL: 1.0, Stage.DECODE: 3.0})
    end = with_rest(finished, "vllm", took_s, num_by_name=2)
    assert sum(end.stages_s.values()) == told
    assert end.remote == Remote(source="vllm", rest_s=rest_s, num_by_name=2)


async def _until_reason(engine: ScriptedEngine, reason: str | None) -> None:
    async with asyncio.timeout(5):
        while engine.unready_reason() != reason:  # noqa: ASYNC110  # looks tell nobody
            await asyncio.sleep(0.01)
