"""Each real engine once for all tests, with an opsin in front of it."""

from __future__ import annotations

import itertools
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from opsin.demo.examples import EXAMPLES
from opsin.testing.server_process import ServerProcess
from tests.conftest import client_of
from tests.e2e.asking import about, complete
from tests.engines.processes import Command, EngineProcess
from tests.engines.programs import LLAMA_CPP, MAX_MODEL_LEN, VLLM, Counters, llama_cpp, vllm

START_TIMEOUT_S = 1800.0
"""vLLM takes one to two minutes on a quiet machine with two cores, and many times that on a busy one."""

SOON_S = 20.0
"""Generous, as the engine may run at the lowest priority of a busy machine."""

A_CIRCLE = about([EXAMPLES["red_circle"]], "What shape is it?")
A_LONG_ANSWER = MAX_MODEL_LEN - 300
"""Tokens: more than an engine produces before a test has looked, and what the context leaves."""


@dataclass(frozen=True, slots=True)
class Served:
    """A real engine and the client of the opsin in front of it."""

    engine: EngineProcess
    counters: Counters
    client: OpenAI
    url: str

    def counted(self, name: str) -> float:
        """One of the engine's own metrics; 0.0 before its first request."""
        return self.engine.samples().get(name, 0.0)

    def start_engine(self) -> None:
        """Again, after it was killed; returns when opsin has seen it."""
        self.engine.start(START_TIMEOUT_S)
        deadline = time.monotonic() + SOON_S
        while not self._is_ready():
            assert time.monotonic() < deadline, "opsin does not see that its engine is back"
            time.sleep(0.5)

    def long_stream(self) -> Any:
        """A stream that has begun and would go on for seconds."""
        return begun_stream(self.client, A_CIRCLE)

    def until_idle(self, timeout_s: float) -> bool:
        """Whether the engine stops working on requests within that time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.counted(self.counters.running) == 0:
                return True
            time.sleep(0.1)
        return False

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/ready") as response:
                return response.status == 200
        except urllib.error.HTTPError:
            return False


def begun_stream(client: OpenAI, messages: list[dict[str, Any]]) -> Any:
    """A stream that has begun and would go on for seconds."""
    options: dict[str, Any] = {"stream": True, "max_tokens": A_LONG_ANSWER, "extra_body": {"ignore_eos": True}}
    stream = complete(client, messages, **options)
    begun: list[Any] = list(itertools.islice(stream, 5))
    assert len(begun) == 5
    return stream


ENGINES: dict[str, tuple[Callable[[Path], Command], Counters]] = {
    "vllm": (lambda _: vllm(), VLLM),
    "llama.cpp": (llama_cpp, LLAMA_CPP),
}


@pytest.fixture(scope="session", params=ENGINES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Started once per engine; one after the other, as machines with two cores have no room for both."""
    command, counters = ENGINES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    with EngineProcess(command(folder), folder / "engine.log") as engine:
        engine.start(START_TIMEOUT_S)
        with ServerProcess("--upstream", engine.url) as server:
            url = server.until_ready()
            with client_of(url) as client:
                yield Served(engine, counters, client, url)
