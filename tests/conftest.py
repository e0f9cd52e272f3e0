"""Real servers as subprocesses, spoken to by the official ``openai`` client without retries."""

from __future__ import annotations

import queue
import re
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest
from openai import OpenAI


@contextmanager
def serve(*arguments: str, start_timeout_s: float = 300) -> Generator[str]:
    """``opsin serve`` on a free port; yields its base URL, and expects a clean end."""
    command = [sys.executable, "-m", "opsin", "serve", *arguments, "--port", "0"]
    output: list[str] = []
    announced: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        # Read to the end, or a full pipe would stop the server.
        reader = threading.Thread(target=_read, args=(process, output, announced))
        reader.start()
        try:
            url = announced.get(timeout=start_timeout_s)
            assert url is not None, f"the server did not start:\n{''.join(output)}"
            yield url
        finally:
            process.terminate()
            status = process.wait(timeout=60)
            reader.join()
    assert status == 0, "".join(output)


def _read(process: subprocess.Popen[str], output: list[str], announced: queue.SimpleQueue[str | None]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        output.append(line)
        if found := re.search(r"on (http://\S+)", line):
            announced.put(found.group(1))
    announced.put(None)


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
