"""What the gateway adds to an engine's answer: beside a bare relay, and beside LiteLLM's proxy in the same run.

    python -m benchmarks.gateway                                     # opsin and the relay
    python -m benchmarks.gateway --litellm /path/to/venv/bin/litellm # and the peer

Behind every arm stands the same scripted engine, which answers at once. Arms take turns, round after round, and while
one is measured all others stand still (SIGSTOP), since a server that only waits takes its share of the cores. In its
turn an arm is saturated by a closed loop, then it gets requests at half of that rate, evenly spaced, and so does the
engine itself: what is added is the difference of the medians. Every answer is read to its end and has to be whole.

The floor is `benchmarks.bare_relay`: the same libraries and nothing else. It is asked at opsin's rate, so that of what
opsin adds the reader sees what is the stack's and what is opsin's own. LiteLLM is asked at half of its own.

A picture is one of a few that the server has seen before, or new to it by a few bytes behind its end (``-new``): a new
one opsin decodes in a worker before it goes on; LiteLLM never looks. With ``--pin`` each server has the first core for
itself, and what measures it has the others: on two cores a server otherwise waits for its own client, and half of what
saturates all three of them is half of both cores.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import functools
import io
import itertools
import json
import os
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.arms import Arm, processes, standing_still
from opsin.bench.photo import PhotoMaker

_MODEL = "scripted"
_KEY = "sk-benchmark"
_ENGINE, _OPSIN, _FLOOR, _LITELLM = "engine", "opsin", "floor", "LiteLLM"
_PEER_BAR = 5.0
"""Times LiteLLM's throughput with pictures."""
_ATTEMPT_S = 0.5
_WAKING_S = 0.5
"""For a server that stood still to notice which connections and looks at the engine have ended meanwhile."""
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
class Turn:
    """What one arm did in one round. ``direct_ms`` are the engine's own latencies at the same rate."""

    saturated_per_s: float
    processor_ms: float  # of the server and its children, per request, while it was saturated
    latencies_ms: Sequence[float]
    direct_ms: Sequence[float]

    @property
    def added_ms(self) -> float:
        """At the median."""
        return statistics.median(self.latencies_ms) - statistics.median(self.direct_ms)


Results = dict[tuple[str, str], list[Turn]]
"""By the names of kind and arm, round by round."""


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
    try:
        answer = await reader.readuntil(_END)
    except asyncio.IncompleteReadError as error:
        answer = error.partial
    if not answer.startswith(b"HTTP/1.1 200") or _DONE not in answer:
        raise RuntimeError(answer[:2000].decode(errors="replace"))


class Connections:
    """Kept connections to one server, as many as are in use at once."""

    def __init__(self, arm: Arm) -> None:
        self._arm = arm
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, request: bytes) -> float:
        """Sends one request; returns the milliseconds to the end of its answer."""
        connection = self._idle.pop() if self._idle else await self._open()
        began = time.perf_counter()
        await _ask(connection, request)
        elapsed_ms = (time.perf_counter() - began) * 1e3
        self._idle.append(connection)
        return elapsed_ms

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", int(self._arm.url.rpartition(":")[2]), limit=2**22)

    def close(self) -> None:
        """All of them are idle."""
        for _, writer in self._idle:
            writer.close()


async def answering(arm: Arm) -> None:
    """Returns when it answers a text."""
    while True:
        connections = Connections(arm)
        try:
            await connections.ask(Bodies(KINDS[0]).next())
            return
        except (OSError, RuntimeError):
            await asyncio.sleep(_ATTEMPT_S)
        finally:
            connections.close()


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


async def turn(arm: Arm, engine: Arm, bodies: Callable[[], Bodies], rate: float | None, args: Arguments) -> Turn:
    """Warm-up and saturation, then ``rate``, or half of what saturates it: the engine, the arm, and once more."""
    await asyncio.sleep(_WAKING_S)
    await answering(arm)
    await saturated(arm, bodies(), args.seconds / 4, args.concurrency)
    before_s = _processor_s(arm)
    per_s = await saturated(arm, bodies(), args.seconds, args.concurrency)
    processor_ms = (_processor_s(arm) - before_s) * 1e3 / (per_s * args.seconds)
    latencies_ms: list[float] = []
    direct_ms: list[float] = []
    for _ in range(2):  # so that neither is always first
        direct_ms += await at_rate(engine, bodies(), rate or per_s / 2, args.seconds / 2)
        latencies_ms += await at_rate(arm, bodies(), rate or per_s / 2, args.seconds / 2)
    return Turn(per_s, processor_ms, latencies_ms, direct_ms)


def _processor_s(arm: Arm) -> float:
    times = [process.cpu_times() for process in processes(arm)]
    return sum(one.user + one.system for one in times)


def measured(arms: Sequence[Arm], engine: Arm, kind: Kind, args: Arguments) -> Iterable[tuple[str, Turn]]:
    """One round: each arm's turn by its name."""
    rate: float | None = None
    for arm in arms:
        with (
            standing_still(*(other for other in arms if other is not arm)),
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            asked = rate if arm.name == _FLOOR else None
            one = runner.run(turn(arm, engine, lambda: Bodies(kind), asked, args))
        rate = one.saturated_per_s / 2 if arm.name == _OPSIN else rate
        yield arm.name, one


def main() -> int:
    """Measures and prints; returns 1 if opsin is over a bar."""
    args = _arguments()
    kinds = [kind for kind in KINDS if kind.name in args.kinds]
    cores = sorted(os.sched_getaffinity(0))
    served, measuring = (cores[:1], cores[1:]) if args.pin else (cores, cores)
    results: Results = defaultdict(list)
    with ExitStack() as stack:
        os.sched_setaffinity(0, measuring)  # children inherit it
        engine = stack.enter_context(_scripted_engine())
        os.sched_setaffinity(0, served)
        arms = [stack.enter_context(_opsin(engine, args.serve)), stack.enter_context(_floor(engine))]
        if args.litellm:
            with standing_still(*arms):
                arms.append(stack.enter_context(_litellm(engine, args.litellm)))
        os.sched_setaffinity(0, measuring)
        for _, kind in itertools.product(range(args.rounds), kinds):
            for name, one in measured(arms, engine, kind, args):
                results[kind.name, name].append(one)
    return _print(kinds, [arm.name for arm in arms], results)


def _print(kinds: Sequence[Kind], arms: Sequence[str], results: Results) -> int:
    table = Table("request", "server", "saturated, req/s", "processor, ms/req", "at half, p50 ms")
    for heading in ("engine alone, p50 ms", "added, p50 ms", "bar"):
        table.add_column(heading)
    missed = False
    for kind in kinds:
        for arm in arms:
            turns = results[kind.name, arm]
            added = [one.added_ms for one in turns]
            bar = kind.bar_ms if arm == _OPSIN else None
            table.add_row(
                kind.name,
                arm,
                _median([one.saturated_per_s for one in turns]),
                _median([one.processor_ms for one in turns]),
                _median([statistics.median(one.latencies_ms) for one in turns]),
                _median([statistics.median(one.direct_ms) for one in turns]),
                _median(added),
                f"{bar:g}" if bar else "",
            )
            missed = missed or (bar is not None and statistics.median(added) > bar)
        missed = _compare(table, kind, results) or missed
    Console(width=150).print(table)
    return int(missed)


def _compare(table: Table, kind: Kind, results: Results) -> bool:
    """Adds what opsin is above the floor, and beside the peer; returns whether it is too little."""
    ours, floor, peer = (results.get((kind.name, name), []) for name in (_OPSIN, _FLOOR, _LITELLM))
    own = [one.added_ms - least.added_ms for one, least in zip(ours, floor, strict=True)]
    table.add_row(kind.name, "opsin - floor", "", "", "", "", _median(own))
    if not peer:
        return False
    times = [one.saturated_per_s / other.saturated_per_s for one, other in zip(ours, peer, strict=True)]
    table.add_row(kind.name, "opsin / LiteLLM", _median(times), *[""] * 4, f"{_PEER_BAR:g}" * bool(kind.photo_bytes))
    return kind.photo_bytes > 0 and statistics.median(times) < _PEER_BAR


def _median(values: Sequence[float]) -> str:
    """With the range over rounds."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


@contextmanager
def _scripted_engine() -> Generator[Arm]:
    port = _free_port()
    words = [sys.executable, "-m", "opsin.testing.scripted_upstream", "--port", str(port), "--model", _MODEL]
    with _server(_ENGINE, port, words) as arm:
        yield arm


@contextmanager
def _floor(engine: Arm) -> Generator[Arm]:
    port = _free_port()
    words = [sys.executable, "-m", "benchmarks.bare_relay", f"{engine.url}/v1/chat/completions", str(port)]
    with _server(_FLOOR, port, words) as arm:
        yield arm


@contextmanager
def _opsin(engine: Arm, flags: str) -> Generator[Arm]:
    port = _free_port()
    words = [sys.executable, "-m", "opsin", "serve", "--upstream", engine.url, "--upstream-model", _MODEL]
    with _server(_OPSIN, port, [*words, "--api-key", _KEY, "--port", str(port), *shlex.split(flags)]) as arm:
        yield arm


@contextmanager
def _litellm(engine: Arm, program: Path) -> Generator[Arm]:
    """One worker, as opsin is one process; telemetry, callbacks and verbosity are off by default or here."""
    model = {"model": f"openai/{_MODEL}", "api_base": f"{engine.url}/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": _MODEL, "litellm_params": model}],
        "general_settings": {"master_key": _KEY},
        "litellm_settings": {"telemetry": False, "set_verbose": False},
    }
    port = _free_port()
    environment = {**os.environ, "LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION"}
    environment.pop("PYTHONPATH", None)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(config, file)  # JSON is YAML
        file.flush()
        words = [str(program), "--config", file.name, "--port", str(port), "--host", "127.0.0.1", "--num_workers", "1"]
        with _server(_LITELLM, port, words, environment) as arm:
            yield arm


@contextmanager
def _server(name: str, port: int, words: list[str], environment: dict[str, str] | None = None) -> Generator[Arm]:
    """A program that answers. Its log goes to a file: a reader of a pipe would take a share of the cores."""
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(words, stdout=log, stderr=log, env=environment) as process,  # noqa: S603 - our own, or the user's
    ):
        arm = Arm(name, f"http://127.0.0.1:{port}", process.pid)
        try:
            asyncio.run(_until_answering(arm, process, log))
            yield arm
        finally:
            process.terminate()


async def _until_answering(arm: Arm, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    asking = asyncio.create_task(answering(arm))
    while not asking.done():
        if process.poll() is not None:
            log.seek(0)
            raise SystemExit(f"{arm.name} did not start:\n{log.read().decode(errors='replace')}")
        await asyncio.wait({asking}, timeout=_ATTEMPT_S)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Arguments(argparse.Namespace):
    """Of the command line."""

    litellm: Path | None
    kinds: list[str]
    rounds: int
    seconds: float
    concurrency: int
    pin: bool
    serve: str


def _arguments() -> Arguments:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--litellm", type=Path, metavar="PATH", help="the peer's program, in an environment of its own")
    parser.add_argument(
        "--kinds", nargs="+", default=[kind.name for kind in KINDS], choices=[kind.name for kind in KINDS]
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of each arm")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each closed loop, and of each open one")
    parser.add_argument("--concurrency", type=int, default=8, help="of the closed loop")
    parser.add_argument("--pin", action="store_true", help="each server on the first core, all else on the others")
    parser.add_argument("--serve", default="", metavar="FLAGS", help="more flags for opsin serve")
    return parser.parse_args(namespace=Arguments())


if __name__ == "__main__":
    raise SystemExit(main())
