"""What the gateway adds to an engine's answer, beside LiteLLM's proxy in the same run.

    python -m benchmarks.gateway                                     # opsin alone
    python -m benchmarks.gateway --litellm /path/to/venv/bin/litellm # and the peer

Behind every arm stands the same scripted engine, which answers at once. First each arm is saturated by a closed loop,
then it gets requests at half of that rate, evenly spaced, and so does the engine itself: what is added is the
difference of the medians. Every answer is read to its end and has to be whole. A picture is one of a few that the
server has seen before, or new to it by a few bytes behind its end (``-new``): a new one opsin decodes in a worker
before it goes on; LiteLLM never looks. With ``--pin`` each server has the first core for itself, and what measures it
has the others: on two cores a server otherwise waits for its own client.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import functools
import io
import json
import os
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from opsin.bench.photo import PhotoMaker
from opsin.testing.server_process import ServerProcess

_MODEL = "scripted"
_KEY = "sk-benchmark"
_ATTEMPT_S = 0.5
_END = b"\r\n0\r\n\r\n"
_DONE = b"data: [DONE]"
_MARK_BYTES = 12
"""Behind a picture's end; a multiple of 3, so that base64 has characters of its own for it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a request holds: a photo of about so many bytes, or text alone. ``bar_ms`` is what may be added."""

    name: str
    photo_bytes: int = 0
    bar_ms: float | None = None
    is_new: bool = False


KINDS = (
    Kind("text", bar_ms=1.5),
    Kind("200KB", 200 * 10**3, bar_ms=2.5),
    Kind("200KB-new", 200 * 10**3, is_new=True),
    Kind("2.5MB", 2500 * 10**3),
    Kind("2.5MB-new", 2500 * 10**3, is_new=True),
)
NUM_KNOWN = 8


@dataclass(frozen=True, slots=True)
class Arm:
    """A server that speaks OpenAI's API."""

    name: str
    port: int


@dataclass(frozen=True, slots=True)
class Result:
    """Of one arm and kind. ``direct_ms`` are the engine's own latencies at the same rate."""

    saturated_per_s: float
    latencies_ms: Sequence[float]
    direct_ms: Sequence[float]

    @property
    def added_ms(self) -> float:
        """At the median."""
        return statistics.median(self.latencies_ms) - statistics.median(self.direct_ms)


class Bodies:
    """Whole HTTP requests of one kind, the next one each time."""

    def __init__(self, kind: Kind) -> None:
        self._is_new = kind.is_new
        self._number = 0
        content: list[dict[str, object]] = [{"type": "text", "text": "What is in the picture? " * 4}]
        if kind.photo_bytes:
            photo = photo_of(kind.photo_bytes)
            url = base64.b64encode(photo + bytes(-len(photo) % 3) + bytes(_MARK_BYTES)).decode()
            content.append({"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{url}"}})
        fields = {"model": _MODEL, "messages": [{"role": "user", "content": content}], "stream": True, "max_tokens": 16}
        body = json.dumps(fields).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: benchmark\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {_KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        mark = base64.b64encode(bytes(_MARK_BYTES))
        before, found, after = body.rpartition(mark) if kind.photo_bytes else (body, b"", b"")
        self._pieces = (head.encode() + before, bool(found), after)

    def next(self) -> bytes:
        """With a picture of its own, or the next of the known ones."""
        before, has_mark, after = self._pieces
        if not has_mark:
            return before
        self._number += 1
        mark = os.urandom(_MARK_BYTES) if self._is_new else (self._number % NUM_KNOWN).to_bytes(_MARK_BYTES, "big")
        return before + base64.b64encode(mark) + after


@functools.cache
def photo_of(num_bytes: int) -> bytes:
    """A JPEG of about so many bytes, with the statistics of a photo: 4 by 3, quality 85."""
    maker, bytes_per_pixel = PhotoMaker(0), 0.33
    small = _jpeg(maker, num_bytes / bytes_per_pixel)
    return _jpeg(maker, num_bytes / bytes_per_pixel * num_bytes / len(small))


def _jpeg(maker: PhotoMaker, num_pixels: float) -> bytes:
    height = round((num_pixels * 3 / 4) ** 0.5)
    buffer = io.BytesIO()
    maker.draw(0, height * 4 // 3, height).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


async def _ask(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], request: bytes) -> None:
    """Raises RuntimeError when the answer is no whole one."""
    reader, writer = connection
    writer.write(request)
    answer = await reader.readuntil(_END)
    if not answer.startswith(b"HTTP/1.1 200") or _DONE not in answer:
        raise RuntimeError(answer[:2000].decode(errors="replace"))


class Connections:
    """Kept connections to one server, as many as are in use at once."""

    def __init__(self, arm: Arm) -> None:
        self._arm = arm
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, request: bytes) -> float:
        """Sends one request; returns the milliseconds to the end of its answer."""
        connection = (
            self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._arm.port, limit=2**22)
        )
        began = time.perf_counter()
        await _ask(connection, request)
        elapsed_ms = (time.perf_counter() - began) * 1e3
        self._idle.append(connection)
        return elapsed_ms

    def close(self) -> None:
        """All of them are idle."""
        for _, writer in self._idle:
            writer.close()


async def saturated(arm: Arm, bodies: Bodies, seconds: float, concurrency: int) -> float:
    """Requests per second of a closed loop."""
    connections = Connections(arm)
    end = time.perf_counter() + seconds
    num_done = 0

    async def client() -> None:
        nonlocal num_done
        while time.perf_counter() < end:
            await connections.ask(bodies.next())
            num_done += 1

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(concurrency)))
    connections.close()
    return num_done / (time.perf_counter() - began)


async def at_rate(arm: Arm, bodies: Bodies, per_s: float, seconds: float) -> list[float]:
    """Latencies in milliseconds of an open loop with even gaps, from the moment at which each request was sent."""
    connections = Connections(arm)
    began = time.perf_counter()
    asked: list[asyncio.Task[float]] = []

    for number in range(max(5, round(per_s * seconds))):
        request = bodies.next()
        due = began + number / per_s
        if (wait_s := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait_s)

        asked.append(asyncio.create_task(connections.ask(request)))
    latencies_ms = await asyncio.gather(*asked)
    connections.close()
    return latencies_ms


async def measured(arm: Arm, engine: Arm, bodies: Callable[[], Bodies], args: argparse.Namespace) -> Result:
    """Warm-up, saturation, then half of it: the engine, the arm, and once more, so that neither is always first."""
    await saturated(arm, bodies(), args.seconds / 4, args.concurrency)
    rate = await saturated(arm, bodies(), args.seconds, args.concurrency)
    latencies_ms: list[float] = []
    direct_ms: list[float] = []
    for _ in range(2):
        direct_ms += await at_rate(engine, bodies(), rate / 2, args.seconds / 2)
        latencies_ms += await at_rate(arm, bodies(), rate / 2, args.seconds / 2)
    return Result(rate, latencies_ms, direct_ms)


def main() -> int:
    """Measures and prints; returns 1 if opsin is over a bar."""
    args = _arguments()
    kinds = [kind for kind in KINDS if kind.name in args.kinds]
    results: dict[tuple[str, str], Result] = {}
    cores = sorted(os.sched_getaffinity(0))
    served, measuring = (cores[:1], cores[1:]) if args.pin else (cores, cores)
    with ExitStack() as stack:
        os.sched_setaffinity(0, measuring)  # children inherit it
        engine = Arm("engine", stack.enter_context(_scripted_engine()))
        os.sched_setaffinity(0, served)
        arms = [stack.enter_context(_opsin(engine, args.serve))]
        if args.litellm:
            arms.append(stack.enter_context(_litellm(engine, args.litellm)))
        os.sched_setaffinity(0, measuring)
        for kind in kinds:
            for arm in arms:

                def bodies(kind: Kind = kind) -> Bodies:
                    return Bodies(kind)

                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    results[kind.name, arm.name] = runner.run(measured(arm, engine, bodies, args))
    return _print(kinds, [arm.name for arm in arms], results)


def _print(kinds: Sequence[Kind], arms: Sequence[str], results: dict[tuple[str, str], Result]) -> int:
    table = Table("request", "server", "saturated, req/s", "at half, p50 ms", "p99 ms", "engine alone, p50 ms")
    table.add_column("added, p50 ms")
    table.add_column("bar")
    missed = False
    for kind in kinds:
        for arm in arms:
            one = results[kind.name, arm]
            over = arm == "opsin" and kind.bar_ms is not None and one.added_ms > kind.bar_ms
            missed = missed or over
            bar = f"{kind.bar_ms:g}{' MISSED' if over else ''}" if arm == "opsin" and kind.bar_ms else ""
            ordered = sorted(one.latencies_ms)
            figures = (one.saturated_per_s, statistics.median(ordered), ordered[int(len(ordered) * 0.99)])
            direct = statistics.median(one.direct_ms)
            table.add_row(kind.name, arm, *(f"{figure:.2f}" for figure in (*figures, direct, one.added_ms)), bar)
        if len(arms) == 2 and kind.photo_bytes:
            ratio = results[kind.name, arms[0]].saturated_per_s / results[kind.name, arms[1]].saturated_per_s
            table.add_row(kind.name, "opsin / LiteLLM", f"{ratio:.1f}", "", "", "", "", "5")
            missed = missed or ratio < 5
    Console(width=130).print(table)
    return int(missed)


@contextmanager
def _scripted_engine() -> Generator[int]:
    words = [sys.executable, "-m", "opsin.testing.scripted_upstream", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own program
        try:
            assert process.stdout is not None
            yield int(json.loads(process.stdout.readline())["port"])
        finally:
            process.terminate()


@contextmanager
def _opsin(engine: Arm, flags: str) -> Generator[Arm]:
    upstream = ("--upstream", f"http://127.0.0.1:{engine.port}", "--upstream-model", _MODEL)
    with ServerProcess(*upstream, "--api-key", _KEY, *shlex.split(flags)) as server:
        yield Arm("opsin", int(server.until_ready().rpartition(":")[2]))


@contextmanager
def _litellm(engine: Arm, program: Path) -> Generator[Arm]:
    """One worker, as opsin is one process; telemetry, callbacks and verbosity are off by default or here."""
    model = {"model": f"openai/{_MODEL}", "api_base": f"http://127.0.0.1:{engine.port}/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": _MODEL, "litellm_params": model}],
        "general_settings": {"master_key": _KEY},
        "litellm_settings": {"telemetry": False, "set_verbose": False},
    }
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(json.dumps(config))  # JSON is YAML
        words = [str(program), "--config", str(path), "--port", str(port), "--host", "127.0.0.1", "--num_workers", "1"]
        environment = {**os.environ, "LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION"}
        environment.pop("PYTHONPATH", None)
        log = (Path(folder) / "log").open("wb")
        with log, subprocess.Popen(words, stdout=log, stderr=log, cwd=folder, env=environment) as process:  # noqa: S603
            try:
                asyncio.run(_until_listening(port, process, Path(folder) / "log"))
                yield Arm("LiteLLM", port)
            finally:
                process.terminate()


async def _until_listening(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    while process.poll() is None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        except OSError:
            await asyncio.sleep(_ATTEMPT_S)
    raise SystemExit(f"LiteLLM did not start:\n{log.read_text()}")  # noqa: ASYNC240 - the end of the program


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--litellm", type=Path, metavar="PATH", help="the peer's program, in an environment of its own")
    parser.add_argument(
        "--kinds", nargs="+", default=[kind.name for kind in KINDS], choices=[kind.name for kind in KINDS]
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="of each closed loop, and of each open one")
    parser.add_argument("--concurrency", type=int, default=8, help="of the closed loop")
    parser.add_argument("--pin", action="store_true", help="each server on the first core, all else on the others")
    parser.add_argument("--serve", default="", metavar="FLAGS", help="more flags for opsin serve")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
