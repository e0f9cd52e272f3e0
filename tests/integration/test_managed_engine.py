"""The supervision of somebody else's program, with a real child process that behaves as it is told."""

from __future__ import annotations

import asyncio
import logging
import shlex
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest

from opsin.core.conversation import Conversation, Message, TextPart
from opsin.core.errors import ConfigError, EngineError
from opsin.engine.api import ChatPrompt, Delta, GenerationRequest, SamplingParams
from opsin.engine.managed.config import ManagedOptions
from opsin.engine.managed.engine import ManagedEngine
from opsin.engine.managed.launch import Serving, launch
from opsin.engine.managed.vllm import VLLM

PROGRAM = shlex.join([sys.executable, "-m", "opsin.testing.scripted_engine"])
PATIENCE_S = 60.0


def an_engine(*arguments: str, start_timeout_s: float = PATIENCE_S, stop_timeout_s: float = 5.0) -> ManagedEngine:
    managed = ManagedOptions(program=PROGRAM, start_timeout_s=start_timeout_s, stop_timeout_s=stop_timeout_s)
    serving = Serving(model="org/model", names=("chosen",), num_images=1)
    return ManagedEngine("vllm", partial(launch, VLLM, serving, managed.program_words, arguments), managed, sees=True)


@asynccontextmanager
async def running(*arguments: str, stop_timeout_s: float = 5.0) -> AsyncGenerator[ManagedEngine]:
    engine = an_engine(*arguments, stop_timeout_s=stop_timeout_s)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()
        assert programs() == []


def programs() -> list[psutil.Process]:
    """The scripted engines of this process that run."""
    return [one for one in psutil.Process().children(recursive=True) if _is_program(one)]


def _is_program(process: psutil.Process) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return "opsin.testing.scripted_engine" in words and "opsin.engine.managed.keeper" not in words


async def ask(engine: ManagedEngine) -> str:
    request = GenerationRequest(
        id=f"r{time.monotonic_ns()}",
        scope="s",
        prompt=ChatPrompt(Conversation((Message("user", (TextPart("What is it?"),)),))),
        pictures=(),
        sampling=SamplingParams(max_tokens=16),
        submitted_at=time.monotonic(),
    )
    return "".join([event.text async for event in engine.submit(request) if isinstance(event, Delta)])


async def until(engine: ManagedEngine, reason: str | None) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while engine.unready_reason() != reason:  # noqa: ASYNC110 - the contract has no event for it
            await asyncio.sleep(0.02)


async def test_it_is_ready_once_it_has_answered(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "opsin")
    engine = an_engine("--scripted-load-s", "1", "--scripted-lines", "3")
    assert engine.unready_reason() == "vllm has not been started"
    starting = asyncio.create_task(engine.start())
    try:
        await until(engine, "vllm is starting: waiting for its list of models")
        with pytest.raises(EngineError, match="waiting for its list of models"):
            await ask(engine)
        await starting
        assert engine.unready_reason() is None
        assert await ask(engine) == "A red circle is left of a blue square."
        capabilities = engine.capabilities()
        assert (capabilities.model_name, capabilities.device) == ("chosen", "vllm")
        assert capabilities.load_time_s is not None
        assert capabilities.load_time_s > 1
        assert (await engine.stats()).process_memory_bytes
    finally:
        await engine.close()
    waits = [message for message in caplog.messages if "waiting for" in message]
    assert "waiting for vllm, 0 s so far, 60 s more at most: it is loading" in waits
    assert waits[-2:] == [f"vllm is starting: waiting for an answer to a {what}" for what in ("text", "picture")]
    assert [message for message in caplog.messages if "line" in message] == [f"vllm | line {at}" for at in range(3)]


async def test_one_that_cannot_see_says_what_to_do() -> None:
    engine = an_engine("--scripted-blind")
    with pytest.raises(ConfigError, match=r"answers a text, but no picture: it is no multimodal model.*\"image\": 0"):
        await engine.start()
    await engine.close()
    assert programs() == []


async def test_one_that_ends_at_once_ends_the_start() -> None:
    engine = an_engine("--scripted-exit", "3")
    with pytest.raises(EngineError, match=r"^vllm ended with status 3 before it answered"):
        await engine.start()
    assert engine.unready_reason() == (
        "vllm could not be started: vllm ended with status 3 before it answered; the log has its last lines"
    )
    await engine.close()


async def test_one_that_takes_too_long_is_ended() -> None:
    engine = an_engine("--scripted-load-s", "600", start_timeout_s=1.0)
    with pytest.raises(EngineError, match=r"waiting for .*, and it took more than managed\.start_timeout_s = 1 s"):
        await engine.start()
    assert programs() == []
    await engine.close()


async def test_a_program_that_is_not_there() -> None:
    engine = ManagedEngine(
        "vllm",
        partial(launch, VLLM, Serving(model="m", names=("m",), num_images=0), ("/no/such/program",), ()),
        ManagedOptions(),
        sees=False,
    )
    with pytest.raises(EngineError, match="ended with status 127"):
        await engine.start()
    await engine.close()


async def test_a_crash_costs_the_requests_in_flight_and_nothing_else() -> None:
    async with running("--scripted-hang") as engine:
        (program,) = programs()
        asked = asyncio.create_task(ask(engine))
        await in_flight(engine)
        program.kill()
        with pytest.raises(EngineError) as caught:
            await asked
        assert caught.value.code == "engine_died"
        await until(engine, "vllm ended and is being restarted")
        with pytest.raises(EngineError) as caught:
            await ask(engine)
        assert (caught.value.code, caught.value.retry_after_s) == ("engine_unavailable", 1)
        await until(engine, None)
        assert programs() != [program]


async def test_one_that_says_itself_that_it_died_is_a_crash() -> None:
    """As vLLM does whose engine's process was killed: an error in the stream, and its end two seconds later."""
    async with running("--scripted-dying") as engine:
        with pytest.raises(EngineError) as caught:
            await ask(engine)
        assert caught.value.code == "engine_died"


async def in_flight(engine: ManagedEngine) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await engine.stats()).running == 0:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.01)


async def test_three_crashes_and_it_stays_down(tmp_path: Path) -> None:
    """Once at work, and twice while it starts again."""
    async with running("--scripted-exit", "3", "--scripted-runs", str(tmp_path / "runs")) as engine:
        (program,) = programs()
        program.kill()
        down = "vllm ended 3 times within 5 minutes and stays down"
        await until(engine, down)
        with pytest.raises(EngineError, match=down):
            await ask(engine)
        assert programs() == []


async def test_what_it_started_ends_with_it() -> None:
    async with running("--scripted-child") as engine:
        before = psutil.Process().children(recursive=True)
        await engine.close()
        assert [one for one in before if one.is_running() and "time.sleep(600)" in " ".join(one.cmdline())] == []


async def test_a_stubborn_one_is_killed() -> None:
    async with running("--scripted-stubborn", stop_timeout_s=0.3) as engine:
        await engine.close()
        assert programs() == []
    with pytest.raises(EngineError, match="the engine is closed"):
        await ask(engine)


async def test_its_environment_holds_its_own_key_and_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPSIN_GATEWAY__API_KEY", "geheim")
    monkeypatch.setenv("VLLM_API_KEY", "of somebody else")
    async with running():
        (program,) = programs()
        environment = program.environ()
        assert not [name for name in environment if name.startswith("OPSIN_")]
        assert environment["VLLM_API_KEY"] != "of somebody else"
        assert environment["VLLM_API_KEY"] not in " ".join(program.cmdline())
        assert environment["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"
