"""Servers, requests and quiet for the rows of ``benchmarks.engine``."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path

import aiohttp
import psutil
from rich.console import Console

from benchmarks import arms
from benchmarks.arms import Arm, processes, standing_still
from benchmarks.chat_timing import Answer, Part, ask, chunks, has_text, photo, picture, text
from benchmarks.floor import Encoder
from opsin.bench.photo import PhotoMaker

OURS, INT8, VLLM, TRANSFORMERS = "opsin", "opsin int8", "vLLM", "transformers"
TILES, COMPACT_SIDE, TILED_SIDE = 17, 512, 1024
_ONE_TILE: dict[str, object] = {"mm_processor_kwargs": {"max_pixels": COMPACT_SIDE**2}}
COMPACT: dict[str, dict[str, object]] = {
    OURS: _ONE_TILE,
    INT8: _ONE_TILE,
    VLLM: {"mm_processor_kwargs": {"do_image_splitting": False, "size": {"longest_edge": COMPACT_SIDE}}},
    TRANSFORMERS: {},
}
"""Fields that leave a picture of ``COMPACT_SIDE`` as it is and whole, so that all servers do the same; the checkpoint
that transformers serves has that for a default. ``detail: low`` would first enlarge it, as the model's own processor
does."""
VLLM_SETTINGS = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "HF_HUB_OFFLINE": "1"}
VLLM_COMMAND = (
    "{program} serve {{model}} --port {{port}} --dtype bfloat16 --max-model-len 4096 --max-num-seqs 16 "
    """--limit-mm-per-prompt '{{"image": 4, "video": 0}}' --enable-prompt-tokens-details --trust-request-mm-kwargs"""
)
TRANSFORMERS_COMMAND = "{program} serve {{model}} --port {{port}} --dtype bfloat16 --device cpu"
QUESTION = "What is shown here, and what is beside it?"


@dataclass(slots=True)
class Watch:
    """Peak of the resident memory of a server's processes while a block runs."""

    peak_bytes: int = 0
    load: float = 0.0


@dataclass
class Lab:
    """The servers, each started when a row first asks for it, and what all rows share."""

    args: argparse.Namespace
    encoder: Encoder
    stack: ExitStack
    console: Console
    maker: PhotoMaker = field(default_factory=lambda: PhotoMaker(20261201))
    numbers: count[int] = field(default_factory=lambda: count(1))
    running: dict[str, Arm] = field(default_factory=dict[str, Arm])

    def has(self, name: str) -> bool:
        """Whether there is such a peer in this run."""
        wanted = {VLLM: self.args.vllm, TRANSFORMERS: self.args.transformers}
        return name in (OURS, INT8) or wanted[name] is not None

    def arm(self, name: str) -> Arm:
        """Starts it while the others stand still."""
        if name not in self.running:
            self.console.print(f"starting {name} …")
            with standing_still(*self.running.values()):
                self.running[name] = self.stack.enter_context(self._started(name))
        return self.running[name]

    def _started(self, name: str) -> AbstractContextManager[Arm]:
        args = self.args
        if name in (OURS, INT8):
            flags = ("--vision-dtype", "int8") if name == INT8 else ()
            return arms.ours(args.checkpoint, args.threads, *flags, name=name)
        log = args.out / f"{name}.log"
        if name == VLLM:
            settings = VLLM_SETTINGS | {"VLLM_CPU_OMP_THREADS_BIND": f"0-{args.threads - 1}"}
            return arms.foreign(name, VLLM_COMMAND.format(program=args.vllm), args.checkpoint, log, settings)
        command = TRANSFORMERS_COMMAND.format(program=args.transformers)
        settings = {"OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1"}
        return arms.foreign(name, command, compact_checkpoint(args.checkpoint, args.out), log, settings)

    @contextmanager
    def measured(self, *names: str) -> Generator[Watch]:
        """Only these run, once nobody else does; without any, all servers stand still."""
        awake = [self.arm(name) for name in names]
        others = [arm for name, arm in self.running.items() if name not in names]
        with standing_still(*others):
            self._wait_for_quiet()
            watch, done = Watch(load=os.getloadavg()[0]), threading.Event()
            sampler = threading.Thread(target=_sample, args=(watch, awake, done))
            sampler.start()
            try:
                yield watch
            finally:
                done.set()
                sampler.join()

    def _wait_for_quiet(self) -> None:
        deadline = time.monotonic() + self.args.patience
        while (busy := psutil.cpu_percent(2.0) / 100 * (os.cpu_count() or 1)) > self.args.max_load:
            if self.args.anyway:
                return
            if time.monotonic() > deadline:
                raise TooBusy(f"{busy:.1f} processors are busy with something else (--anyway measures all the same)")

    def photo(self, side: int) -> bytes:
        """One that nobody has seen."""
        return photo(self.maker, next(self.numbers), side)

    def timed(self, name: str, *requests: Request) -> tuple[list[Answer], Watch]:
        """One after the other, behind a text that warms the server up."""
        with self.measured(name) as watch:
            return asyncio.run(in_turn(self.running[name], requests)), watch


class TooBusy(Exception):
    """The machine does something else."""


@dataclass(frozen=True, slots=True)
class Request:
    """``more`` are fields of the body that only this server wants."""

    parts: tuple[Part, ...]
    max_tokens: int = 2
    more: tuple[tuple[str, object], ...] = ()


def compact(lab: Lab, name: str, max_tokens: int = 2) -> Request:
    """A new picture of one tile."""
    parts = picture(lab.photo(COMPACT_SIDE), "jpeg"), text(QUESTION)
    return Request(parts, max_tokens, tuple(COMPACT[name].items()))


def tiled(data: bytes, question: str = QUESTION, *, text_first: bool = False) -> Request:
    """A picture of 17 tiles."""
    parts = picture(data, "jpeg"), text(question)
    return Request(parts[::-1] if text_first else parts)


async def in_turn(arm: Arm, requests: Sequence[Request]) -> list[Answer]:
    """One after the other."""
    async with aiohttp.ClientSession(arm.url) as http:
        await ask(http, [text("hello")], 4)
        return [await ask(http, each.parts, each.max_tokens, **dict(each.more)) for each in requests]


async def at_once(arm: Arm, requests: Sequence[Request], concurrency: int) -> list[Answer]:
    """So many at a time, answers of full length."""
    places = asyncio.Semaphore(concurrency)
    async with aiohttp.ClientSession(arm.url, connector=aiohttp.TCPConnector(limit=0)) as http:

        async def one(request: Request) -> Answer:
            async with places:
                return await ask(http, request.parts, request.max_tokens, **_whole(arm), **dict(request.more))

        return await asyncio.gather(*map(one, requests))


def _whole(arm: Arm) -> dict[str, object]:
    """Answers of one length, where a server can be asked for that."""
    return {} if arm.name == TRANSFORMERS else {"ignore_eos": True}


async def counting_tiles(arm: Arm, requests: Sequence[Request]) -> tuple[list[Answer], list[int]]:
    """One after the other, with the tiles that each had encoded; no tiles where the server does not say."""
    answers: list[Answer] = []
    tiles: list[int] = []
    async with aiohttp.ClientSession(arm.url) as http:
        await ask(http, [text("hello")], 4)
        before = await _encoded_tiles(http)
        for request in requests:
            answers.append(await ask(http, request.parts, request.max_tokens))
            after = await _encoded_tiles(http)
            if before is not None and after is not None:
                tiles.append(after - before)
            before = after
    return answers, tiles


async def _encoded_tiles(http: aiohttp.ClientSession) -> int | None:
    """None where the server does not say."""
    async with http.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    found = [line.split()[-1] for line in lines if line.startswith("opsin_encoded_tiles_total")]
    return int(float(found[0])) if found else None


async def beside_a_stream(arm: Arm, requests: Sequence[Request]) -> tuple[list[float], list[Answer]]:
    """Pauses, in seconds, of one long answer, from the first arrival to the last answer.

    Raises RuntimeError if the stream ends before.
    """
    times: list[float] = []
    async with aiohttp.ClientSession(arm.url) as http:

        async def stream() -> None:
            async for chunk in chunks(http, [text("Tell a long story.")], 3000, **_whole(arm)):
                if has_text(chunk):
                    times.append(time.perf_counter())

        await ask(http, [text("hello")], 4)
        running = asyncio.create_task(stream())
        await asyncio.sleep(1)
        num_before = len(times)
        answers = [await ask(http, each.parts, each.max_tokens) for each in requests]
        if running.done():
            running.result()
            raise RuntimeError("the stream ended before the last arrival")
        running.cancel()
        await asyncio.wait([running])
    return [later - earlier for earlier, later in pairwise(times[max(num_before - 1, 0) :])], answers


def compact_checkpoint(checkpoint: Path, out: Path) -> Path:
    """The same weights with a processor that makes one tile of a picture, for a server that cannot be asked for it."""
    folder = out.absolute() / "compact"
    folder.mkdir(parents=True, exist_ok=True)
    for file in checkpoint.iterdir():
        link = folder / file.name
        if not link.exists():
            link.symlink_to(file.absolute())
    settings = json.loads((checkpoint / "processor_config.json").read_text())
    images = settings["image_processor"]
    images["do_image_splitting"] = False
    images["size"] = {"longest_edge": COMPACT_SIDE}
    (folder / "processor_config.json").unlink()
    (folder / "processor_config.json").write_text(json.dumps(settings))
    return folder


def _sample(watch: Watch, awake: Sequence[Arm], done: threading.Event) -> None:
    while not done.wait(0.5):
        watch.peak_bytes = max(watch.peak_bytes, sum(map(_resident_bytes, awake)))


def _resident_bytes(arm: Arm) -> int:
    total = 0
    for process in processes(arm):
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total
