"""Real servers as subprocesses, spoken to by the official ``openai`` client without retries."""

from __future__ import annotations

import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import cast

import pytest
from hypothesis import settings
from openai import OpenAI

from opsin.testing.server_process import ServerProcess

settings.register_profile("patient", deadline=None)  # a busy machine misses any
settings.load_profile("patient")

ONE_THREAD = {"OPSIN_LOCAL__NUM_THREADS": "1", "OPSIN_LOCAL__WARM_UP_S": "0"}
"""The demo model is no faster with more, and far slower where other programs want the same cores; nor need its first
answer be fast."""


signal.signal(signal.SIGINT, signal.default_int_handler)
"""A shell starts what runs in its background with interrupts ignored, and tests of them would wait for ever."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long the random schedules of the local engine run; the release runs 500."""
    parser.addoption("--schedules", type=int, default=25, help="random schedules of the batching engine")


@pytest.fixture(scope="session")
def num_schedules(request: pytest.FixtureRequest) -> int:
    """Random schedules to run."""
    return cast("int", request.config.getoption("--schedules"))


@contextmanager
def serve(*arguments: str, start_timeout_s: float = 300) -> Generator[str]:
    """``opsin serve`` on a free port; yields its base URL, and expects a clean end."""
    with ServerProcess(*arguments, environment=ONE_THREAD) as server:
        yield server.until_ready(start_timeout_s)
    assert server.wait() == 0, server.log


def client_of(url: str) -> OpenAI:
    """The official client, every failure visible."""
    return OpenAI(base_url=f"{url}/v1", api_key="local-token", max_retries=0)


@pytest.fixture(scope="session")
def demo_url() -> Iterator[str]:
    """One server with the demo model for all tests that change nothing in it."""
    with serve() as url:
        yield url


@pytest.fixture(scope="session")
def client(demo_url: str) -> Iterator[OpenAI]:
    """The official client at that server."""
    with client_of(demo_url) as client:
        yield client
