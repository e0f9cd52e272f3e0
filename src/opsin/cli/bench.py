"""``opsin bench URL``: measures a server, prints tables, leaves a file from which they can be printed again."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console

from opsin.bench.config import Arrival, BenchConfig, checked
from opsin.bench.live import live
from opsin.bench.record import Line, Writer, read
from opsin.bench.run import run as measure
from opsin.bench.show import show
from opsin.bench.summary import exit_status, summarise
from opsin.core.errors import ConfigError

_MIN_WIDTH = 110
"""Of tables that go into a file."""


def add(command: argparse.ArgumentParser) -> None:
    """The command's words. What they mean is judged by BenchConfig; names follow ``vllm bench serve``."""
    command.add_argument(
        "url", nargs="?", metavar="URL", help="an OpenAI-compatible server, e.g. http://127.0.0.1:8000"
    )
    _add_load(command.add_argument_group("load: one level per number"))
    _add_content(command.add_argument_group("what is asked"))
    _add_means(command.add_argument_group("judgement and means"))
    _add_results(command.add_argument_group("results"))


def run(args: argparse.Namespace) -> int:
    """Returns the exit status: 0 valid, 1 invalid or nothing succeeded, 130 interrupted with the results written."""
    if args._from is not None:
        return _print(args._from, as_json=args._json)
    if not hasattr(args, "url") or args.url is None:
        raise ConfigError("name the server to measure, e.g. opsin bench http://127.0.0.1:8000")
    config = _config(args)
    path = args._result or Path(f"bench-{datetime.now(UTC):%Y%m%d-%H%M%S}.jsonl")
    asyncio.run(_measure(config, path))
    status = _print(path, as_json=args._json)
    print(f"results: {path}", file=sys.stderr)
    return status


def _config(args: argparse.Namespace) -> BenchConfig:
    values = {name: value for name, value in vars(args).items() if name in BenchConfig.model_fields}
    if "api_key" not in values and (key := os.environ.get("OPENAI_API_KEY")):
        values["api_key"] = key
    return checked(values)


async def _measure(config: BenchConfig, path: Path) -> None:
    interrupt = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt.set)
    with live(Console(stderr=True)) as watcher, _LateFile(path) as file:
        await measure(config, file.write, watcher, interrupt=interrupt, command=sys.argv)


class _LateFile:
    """The file of results, which comes into being with its first line: a run that cannot begin leaves none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: Writer | None = None

    def __enter__(self) -> _LateFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, line: Line) -> None:
        """Raises ConfigError when there can be no such file."""
        if self._writer is None:
            try:
                self._writer = Writer(self._path.open("wb"))
            except OSError as error:
                raise ConfigError(f"cannot write results to {self._path}: {error.strerror}") from None
        self._writer.write(line)


def _print(path: Path, *, as_json: bool) -> int:
    """From the file alone, so that what is printed is what is kept."""
    summary = summarise(read(path))
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(summary)).decode())
    else:
        console = Console()
        show(summary, console if console.is_terminal else Console(width=max(_MIN_WIDTH, console.width)))
    return exit_status(summary)


_Group = argparse._ArgumentGroup  # pyright: ignore[reportPrivateUsage] its type has no public name


def _add(group: _Group, flag: str, **options: object) -> None:
    """A flag that leaves no trace when it is not typed, so that the configuration's default holds."""
    group.add_argument(flag, default=argparse.SUPPRESS, **options)  # pyright: ignore[reportArgumentType]


def _add_load(group: _Group) -> None:
    _add(group, "--max-concurrency", nargs="+", metavar="N", help="closed loop: so many at once (default 1)")
    _add(group, "--request-rate", nargs="+", metavar="R", help="open loop: so many arrivals per second")
    _add(group, "--arrival", choices=tuple(Arrival), help="gaps between arrivals (default poisson)")
    _add(group, "--num-prompts", metavar="N", help="requests per level (default 100)")
    _add(group, "--duration", dest="duration_s", metavar="S", help="start no request later than S seconds into a level")
    _add(
        group,
        "--num-warmups",
        metavar="N",
        help="requests before the clock, with pictures of their own (default: two of each size, at least 4)",
    )
    _add(group, "--timeout", dest="timeout_s", metavar="S", help="per request (default 600)")
    _add(group, "--seed", metavar="N", help="of pictures, words and arrivals (default 0)")


def _add_content(group: _Group) -> None:
    _add(group, "--model", metavar="NAME", help="default: the first of /v1/models")
    _add(group, "--images", metavar="N|A-B", help="pictures per request (default 1)")
    _add(group, "--resolution", metavar="WxH:SHARE,…", help="sizes of drawn pictures (default 512x512)")
    _add(group, "--format", metavar="KIND:QUALITY", help="jpeg:85, webp:80 or png (default jpeg:85)")
    _add(group, "--picture-dir", metavar="DIR", help="send these files as they are, in place of drawn pictures")
    _add(group, "--cache", metavar="STATE", help="cold, warm:K or mixed:K:S with Zipf's S (default cold)")
    _add(group, "--detail", choices=("auto", "low", "high", "original"), help="of every picture (default: not sent)")
    _add(group, "--input-words", metavar="N", help="words per question (default 16)")
    _add(group, "--output-len", metavar="N", help="max_tokens (default 128)")
    _add(group, "--ignore-eos", action="store_true", help="demand the whole length; an answer that is shorter fails")


def _add_means(group: _Group) -> None:
    _add(group, "--goodput", nargs="+", metavar="SLO:MS", help="limits in ms: ttft, tpot, e2el, e.g. ttft:2000 tpot:50")
    _add(group, "--probe-rate", metavar="R", help="short texts per second beside the load, to see it hold others up")
    _add(group, "--workers", metavar="N", help="client processes (default 1)")
    _add(group, "--server-pid", metavar="PID", help="whose memory and CPU to watch (default: who listens on the port)")
    _add(group, "--api-key", metavar="KEY", help="default: OPENAI_API_KEY")


def _add_results(group: _Group) -> None:
    group.add_argument("--result", dest="_result", type=Path, metavar="FILE", help="default: bench-TIME.jsonl")
    group.add_argument("--from", dest="_from", type=Path, metavar="FILE", help="print results again, measure nothing")
    group.add_argument("--json", dest="_json", action="store_true", help="print the summary as JSON")
