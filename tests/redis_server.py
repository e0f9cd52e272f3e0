"""A real Redis server for tests: on a Unix socket in a folder of its own, with nothing on disk beside it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as NotYet

PROGRAM = shutil.which("redis-server")
needs_redis = pytest.mark.skipif(PROGRAM is None, reason="redis-server is not installed")
_START_TIMEOUT_S = 20.0


class RedisServer:
    """One server; what it holds is gone when it stops. Stopped and started again it has the same address."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self._socket = folder / "redis.sock"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """As ``--redis-url`` takes it."""
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int:
        """For signals: a stopped process is a slow server."""
        assert self._process is not None
        return self._process.pid

    def client(self) -> Redis:
        """A connection of the test's own; close it."""
        return Redis.from_url(self.url)

    def start(self) -> None:
        """Returns when it answers."""
        assert PROGRAM is not None
        words = [PROGRAM, "--port", "0", "--unixsocket", str(self._socket), "--dir", str(self._folder)]
        words += ["--save", "", "--appendonly", "no", *self._options]
        self._process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + _START_TIMEOUT_S
        with self.client() as client:
            while True:
                try:
                    client.ping()
                    return
                except NotYet:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.01)

    def stop(self) -> None:
        """Safe to call twice."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self._socket.unlink(missing_ok=True)


@contextmanager
def redis_server(*options: str) -> Generator[RedisServer]:
    """A running server, ended with the block. ``options`` are redis-server's own, as ``--maxmemory 1mb``."""
    # pytest's own folders have names that are too long for a socket
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:
        server = RedisServer(Path(folder), *options)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def values_of(client: Any, key: bytes) -> Iterator[bytes]:
    """All that is kept under a key, of whatever type. Raises AssertionError for a type that opsin does not use."""
    match client.type(key):
        case b"hash":
            yield from (part for pair in client.hgetall(key).items() for part in pair)
        case b"zset":
            yield from client.zrange(key, 0, -1)
        case b"stream":
            yield from (part for _, words in client.xrange(key) for pair in words.items() for part in pair)
        case b"string":
            yield client.get(key)
        case other:
            raise AssertionError(f"nobody looks into a {other}")
