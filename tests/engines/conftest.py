"""Each real engine once for all tests, with an opsin in front of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from openai import OpenAI

from opsin.testing.server_process import ServerProcess
from tests.conftest import client_of
from tests.engines.processes import Command, EngineProcess
from tests.engines.programs import LLAMA_CPP, VLLM, Counters, llama_cpp, vllm

START_TIMEOUT_S = 1800.0
"""vLLM takes one to two minutes on a quiet machine with two cores, and many times that on a busy one."""


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
        """Again, after it was killed."""
        self.engine.start(START_TIMEOUT_S)

    def until_idle(self, timeout_s: float) -> bool:
        """Whether the engine stops working on requests within that time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.counted(self.counters.running) == 0:
                return True
            time.sleep(0.1)
        return False


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
