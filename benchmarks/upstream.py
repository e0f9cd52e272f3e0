"""opsin in front of an engine against that engine alone, request by request in turn, with an A/A run beside it.

    python benchmarks/upstream.py --upstream http://127.0.0.1:8100 --model demo
    python benchmarks/upstream.py --upstream-command 'taskset -c 1 vllm serve {model} --port {port} …' --model FOLDER

Text and small pictures: every round asks the engine, the engine once more (A/A) and opsin, in an order of its own, with
a nonce and pictures that nobody sent before. The ratio is that of the medians end to end, with the 95 % interval of a
bootstrap over rounds. Repeated pictures: bytes that reach the engine per request, counted between it and opsin, with
and without ``--upstream-exclusive``. 12 megapixels: TTFT with and without ``--offload``. Prints versions and the load
average; what the engine cannot do (names for pictures, a model that can be counted) is left out with a word.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import os
import platform
import random
import shlex
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

import aiohttp
import numpy as np
from rich.console import Console
from rich.table import Table

from opsin import __version__
from opsin.bench.photo import PhotoMaker
from opsin.testing.server_process import ServerProcess

_PARTS = ("text", "small", "repeated", "photos")
_START_TIMEOUT_S = 900.0
_RESAMPLES = 10_000
_SMALL = (256, 256)
_PHOTO = (4032, 3024)


@dataclass(frozen=True, slots=True)
class Arm:
    """Somebody to ask. ``process`` is known of an engine that was started here."""

    name: str
    url: str
    process: subprocess.Popen[bytes] | None = None

    def check_runs(self) -> None:
        """Raises SystemExit."""
        if self.process is not None and (status := self.process.poll()) is not None:
            raise SystemExit(f"the engine ended with status {status}")


@dataclass(frozen=True, slots=True)
class Took:
    """One whole answer, in seconds from the first byte sent."""

    ttft_s: float
    e2e_s: float


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio of medians, with the bounds of its 95 % interval."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.ratio:.3f} ({self.low:.3f}–{self.high:.3f})"


class Asker:
    """Asks in the same way, whoever it is: one request after another, each on a connection that is kept."""

    def __init__(self, http: aiohttp.ClientSession, model: str, output_len: int) -> None:
        self._http = http
        self._model = model
        self._output_len = output_len

    async def ask(self, arm: Arm, nonce: str, *pictures: bytes) -> Took:
        """Raises SystemExit when the answer is none."""
        parts: list[dict[str, object]] = [{"type": "image_url", "image_url": {"url": _url(one)}} for one in pictures]
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": [*parts, {"type": "text", "text": f"{nonce}: what is it?"}]}],
            "max_tokens": self._output_len,
            "temperature": 0,
            "stream": True,
        }
        data = io.BytesIO(json.dumps(body).encode())
        headers = {"content-type": "application/json"}
        began, first, rest = time.perf_counter(), None, b""
        async with self._http.post(f"{arm.url}/v1/chat/completions", data=data, headers=headers) as response:
            async for line in response.content:
                if first is None and _bears_text(line):
                    first = time.perf_counter()
                rest = line.strip() or rest
        if response.status != 200 or first is None or rest != b"data: [DONE]":
            raise SystemExit(f"{arm.name}: status {response.status}, and then {rest[:500]!r}")
        return Took(first - began, time.perf_counter() - began)


class Meter:
    """Passes bytes on to the engine and counts them."""

    def __init__(self, host: str, port: int) -> None:
        self.num_bytes = 0
        self._engine = (host, port)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[str]:
        """Gives the URL to ask in the engine's place."""
        server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection(*self._engine)
        await asyncio.gather(self._copy(reader, ours, counted=True), self._copy(theirs, writer, counted=False))

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, counted: bool) -> None:
        try:
            while read := await source.read(2**18):
                self.num_bytes += len(read) if counted else 0
                sink.write(read)
                await sink.drain()
        except ConnectionError:
            pass
        finally:
            sink.close()


def main() -> None:
    """Measures and prints."""
    args = _arguments()
    with ExitStack() as stack:
        engine = stack.enter_context(_engine(args))
        asyncio.run(_measure(args, engine))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    engine = parser.add_mutually_exclusive_group(required=True)
    engine.add_argument("--upstream", metavar="URL", help="runs already")
    engine.add_argument("--upstream-command", metavar="WORDS", help="started here; {model} and {port} are filled in")
    parser.add_argument("--model", help="what the engine serves, a folder or hub id: needed for --offload")
    parser.add_argument("--opsin", default="", metavar="FLAGS", help="more flags for opsin serve")
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=_PARTS, help="what is measured")
    parser.add_argument("--rounds", type=int, default=100, help="of text and small pictures")
    parser.add_argument("--photos", type=int, default=15, help="rounds with 12 megapixels")
    parser.add_argument("--repeats", type=int, default=30, help="requests with one of three pictures")
    parser.add_argument("--output-len", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


@contextmanager
def _engine(args: argparse.Namespace) -> Generator[Arm]:
    if args.upstream is not None:
        yield Arm("engine", args.upstream.rstrip("/"))
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    places = {"{model}": str(args.model), "{port}": str(port)}  # not format(): the flags hold JSON
    words = [places.get(word, word) for word in shlex.split(args.upstream_command)]
    with subprocess.Popen(words, stdout=sys.stderr, stderr=sys.stderr) as process:  # noqa: S603 - the user's own command
        try:
            yield Arm("engine", f"http://127.0.0.1:{port}", process)
        finally:
            process.terminate()


@asynccontextmanager
async def _opsin(args: argparse.Namespace, engine_url: str, *flags: str, name: str = "opsin") -> AsyncGenerator[Arm]:
    """Waits in a thread: its first question may go through a meter of this loop."""
    model = (args.model,) if args.model else ()
    with ServerProcess(*model, "--upstream", engine_url, *shlex.split(args.opsin), *flags) as server:
        yield Arm(name, await asyncio.to_thread(server.until_ready))


async def _measure(args: argparse.Namespace, engine: Arm) -> None:
    console = Console(width=130)
    timeout = aiohttp.ClientTimeout(total=None, sock_read=600)
    # A connection for each request: one that idled while a photo was drawn may be closed by the time it is used.
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(force_close=True)) as http:
        model, owned_by = await _model(http, engine)
        console.print(_about(owned_by))
        asker = Asker(http, model, args.output_len)
        if {"text", "small"} & set(args.parts):
            console.print(await _overhead(args, engine, asker))
        if "repeated" in args.parts:
            console.print(await _repeated(args, engine, asker, named=owned_by == "vllm"))
        if "photos" in args.parts and args.model is None:
            console.print("12 megapixels: left out, as --offload needs --model")
        elif "photos" in args.parts:
            console.print(await _photos(args, engine, asker))
    console.print(f"load average at the end: {os.getloadavg()[0]:.1f}")


async def _model(http: aiohttp.ClientSession, engine: Arm) -> tuple[str, str]:
    """The name of the engine's model and whose it says it is, once it is there."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        engine.check_runs()
        try:
            async with http.get(f"{engine.url}/v1/models") as response:
                if response.status == 200:
                    entry = (await response.json())["data"][0]
                    return entry["id"], entry.get("owned_by", "unknown")
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(1)
    raise SystemExit("the engine did not answer")


def _about(owned_by: str) -> str:
    return (
        f"opsin {__version__}, engine {owned_by}, Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"{platform.machine()}, load average {os.getloadavg()[0]:.1f}"
    )


async def _overhead(args: argparse.Namespace, engine: Arm, asker: Asker) -> Table:
    maker = PhotoMaker(args.seed)
    kinds: dict[str, Callable[[int], tuple[bytes, ...]]] = {}
    if "text" in args.parts:
        kinds["text"] = lambda _: ()
    if "small" in args.parts:
        kinds[f"one picture of {_SMALL[0]} x {_SMALL[1]}"] = lambda number: (_jpeg(maker, number, _SMALL),)
    table = Table(title=f"End to end, {args.rounds} rounds; ratio of medians (95 % interval)", title_justify="left")
    for heading in ("request", "engine, ms", "engine again / engine", "opsin, ms", "opsin / engine"):
        table.add_column(heading)
    async with _opsin(args, engine.url) as opsin:
        for kind, pictures in kinds.items():
            arms = (engine, Arm("again", engine.url), opsin)
            took = await _in_turn(asker, arms, args.rounds, pictures, args.seed)
            e2e = {name: [one.e2e_s for one in times] for name, times in took.items()}
            table.add_row(
                kind,
                _ms(e2e["engine"]),
                str(_interval(e2e["again"], e2e["engine"], args.seed)),
                _ms(e2e["opsin"]),
                str(_interval(e2e["opsin"], e2e["engine"], args.seed)),
            )
    return table


async def _photos(args: argparse.Namespace, engine: Arm, asker: Asker) -> Table:
    maker = PhotoMaker(args.seed + 1)
    table = Table(title=f"TTFT of 12 megapixels, {args.photos} rounds (95 % interval)", title_justify="left")
    for heading in ("arm", "TTFT p50, ms", "/ opsin without offload"):
        table.add_column(heading)
    async with (
        _opsin(args, engine.url) as plain,
        _opsin(args, engine.url, "--offload", name="opsin --offload") as less,
    ):
        arms = (engine, plain, less)
        took = await _in_turn(asker, arms, args.photos, lambda number: (_jpeg(maker, number, _PHOTO),), args.seed)
    ttft = {name: [one.ttft_s for one in times] for name, times in took.items()}
    for name, times in ttft.items():
        table.add_row(name, _ms(times), str(_interval(times, ttft["opsin"], args.seed)))
    return table


async def _repeated(args: argparse.Namespace, engine: Arm, asker: Asker, *, named: bool) -> Table:
    maker = PhotoMaker(args.seed + 2)
    pictures = [_jpeg(maker, number, (1024, 768)) for number in range(3)]
    table = Table(title=f"{args.repeats} requests with one of three pictures of 1024 x 768", title_justify="left")
    for heading in ("opsin", "bytes to the engine per request", "of them the first three"):
        table.add_column(heading)
    for flags in ((), ("--upstream-exclusive",)) if named else ((),):
        meter = Meter(*_address(engine.url))
        async with meter.running() as url, _opsin(args, url, *flags) as opsin:
            began, first = meter.num_bytes, 0
            for number in range(args.repeats):
                await asker.ask(opsin, f"{args.seed}-{number}", pictures[number % 3])
                first = meter.num_bytes if number == 2 else first
            sent = meter.num_bytes - began
        table.add_row(" ".join(flags) or "default", f"{sent / args.repeats:,.0f}", f"{(first - began) / sent:.0%}")
    if not named:
        table.caption = "--upstream-exclusive: left out, as only vLLM takes names for pictures"
    return table


async def _in_turn(
    asker: Asker, arms: Sequence[Arm], rounds: int, pictures: Callable[[int], tuple[bytes, ...]], seed: int
) -> dict[str, list[Took]]:
    """By arm; the order changes from round to round, and one round before the first is not counted."""
    order = random.Random(seed)
    took: dict[str, list[Took]] = {arm.name: [] for arm in arms}
    for number in range(-1, rounds):
        for place, arm in enumerate(order.sample(arms, len(arms))):
            nonce = f"{seed}-{number}-{place}"
            one = await asker.ask(arm, nonce, *pictures((number + 1) * len(arms) + place))
            if number >= 0:
                took[arm.name].append(one)
    return took


def _interval(ours: Sequence[float], theirs: Sequence[float], seed: int) -> Interval:
    """Rounds are drawn as a whole, so that what slowed a round down counts on both sides."""
    pairs = np.array([ours, theirs])
    drawn = np.random.default_rng(seed).integers(0, pairs.shape[1], size=(_RESAMPLES, pairs.shape[1]))
    medians = np.median(pairs[:, drawn], axis=2)
    low, high = np.percentile(medians[0] / medians[1], (2.5, 97.5))
    return Interval(statistics.median(ours) / statistics.median(theirs), float(low), float(high))


def _bears_text(line: bytes) -> bool:
    compact = line.replace(b": ", b":")
    return b'"content":"' in compact and b'"content":""' not in compact


def _jpeg(maker: PhotoMaker, number: int, size: tuple[int, int]) -> bytes:
    """Large ones are enlarged: their noise would take the drawing more time than the request."""
    width, height = size
    shrunk = max(1, width // 1024)
    picture = maker.draw(number, width // shrunk, height // shrunk).resize(size)
    buffer = io.BytesIO()
    picture.save(buffer, "jpeg", quality=85)
    return buffer.getvalue()


def _url(picture: bytes) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(picture).decode()}"


def _address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def _ms(times: Sequence[float]) -> str:
    return f"{statistics.median(times) * 1e3:.1f}"


if __name__ == "__main__":
    main()
