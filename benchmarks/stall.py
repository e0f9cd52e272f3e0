"""How long does a running stream stand still while a large picture arrives?

    python benchmarks/stall.py CHECKPOINT --threads 2
    python benchmarks/stall.py CHECKPOINT --threads 2 --peer http://127.0.0.1:8101

One client reads a stream of text. Beside it pictures arrive one after the other, all different, each answered with one
token. Prints the longest gap between two chunks of the stream during each arrival, beside the encoder's time for one
unit (a tile, or of families without independent tiles a picture) as the server's own timeline tells it. A peer is only
asked; start it as README.md beside this file says. How to make the checkpoint stands there, too.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import random
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import aiohttp
from PIL import Image
from rich.console import Console
from rich.table import Table

from opsin.testing.server_process import ServerProcess

QUIET_S = 5.0
"""Of the stream alone, before the first picture."""
PAUSE_S = 1.0
_FIRST_CHUNK_TIMEOUT_S = 600.0
ALLOWED = 1.2
"""A stall may last as long as one unit and a fifth: a step decodes, too."""


@dataclass(slots=True)
class Stream:
    """When chunks with text came, answer by answer: the pause between two answers is none of a running stream."""

    answers: list[list[float]] = field(default_factory=list[list[float]])
    began: asyncio.Event = field(default_factory=asyncio.Event)

    def gaps(self, start: float, stop: float) -> list[float]:
        """Between neighbours, as far as they touch the time from ``start`` to ``stop``; the last may still be open."""
        now = time.monotonic()
        return [
            end - begin
            for chunks_at in self.answers
            for begin, end in pairwise([*chunks_at, now] if chunks_at is self.answers[-1] else chunks_at)
            if end > start and begin < stop
        ]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One picture. ``tiles`` and ``encode_s`` are None where the server does not tell."""

    longest_s: float
    answered_s: float
    tiles: int | None
    encode_s: float | None


@dataclass(frozen=True, slots=True)
class Measured:
    """One server."""

    name: str
    quiet: Sequence[float]
    arrivals: Sequence[Arrival]

    def unit_s(self, *, is_tile: bool) -> float | None:
        """The median over the arrivals."""
        told = [
            arrival.encode_s / (arrival.tiles if is_tile else 1)
            for arrival in self.arrivals
            if arrival.encode_s and arrival.tiles
        ]
        return statistics.median(told) if told else None


async def measure(name: str, url: str, args: argparse.Namespace) -> Measured:
    """The stream alone, then beside each picture."""
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(url, timeout=timeout) as http, http.get("/v1/models") as models:
        model = (await models.json())["data"][0]["id"]
        stream = Stream()
        reading = asyncio.create_task(_read_for_ever(http, model, args.max_tokens, stream))
        await asyncio.wait_for(stream.began.wait(), _FIRST_CHUNK_TIMEOUT_S)
        started = time.monotonic()
        await asyncio.sleep(QUIET_S)
        quiet = stream.gaps(started, time.monotonic())
        arrivals = [await _arrive(http, model, args, seed, stream) for seed in range(args.arrivals)]
        reading.cancel()
    return Measured(name, quiet, arrivals)


async def _read_for_ever(http: aiohttp.ClientSession, model: str, max_tokens: int, stream: Stream) -> None:
    while True:
        stream.answers.append([])
        async for chunk in _chunks(http, _body(model, "Tell me a long story.", max_tokens=max_tokens, stream=True)):
            if chunk.get("choices") and chunk["choices"][0]["delta"].get("content"):
                stream.answers[-1].append(time.monotonic())
                stream.began.set()


async def _arrive(
    http: aiohttp.ClientSession, model: str, args: argparse.Namespace, seed: int, stream: Stream
) -> Arrival:
    picture = {"type": "image_url", "image_url": {"url": _picture(seed, args.side)}}
    content = [picture, {"type": "text", "text": "What is it?"}]
    started = time.monotonic()
    async with http.post("/v1/chat/completions", json=_body(model, content, max_tokens=1)) as response:
        answer = await response.json()
        response.raise_for_status()
    stopped = time.monotonic()
    longest = max(stream.gaps(started, stopped), default=0.0)
    await asyncio.sleep(PAUSE_S)
    told: dict[str, Any] = answer.get("opsin") or {}
    encode_ms: float | None = told.get("timeline", {}).get("vision_encode_ms")
    return Arrival(
        longest_s=longest,
        answered_s=stopped - started,
        tiles=told["images"][0]["tiles"] if told else None,
        encode_s=None if encode_ms is None else encode_ms / 1e3,
    )


async def _chunks(http: aiohttp.ClientSession, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    async with http.post("/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.content:
            if line.startswith(b"data: {"):
                yield json.loads(line.removeprefix(b"data: "))


def _body(model: str, content: object, *, max_tokens: int, stream: bool = False) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {
        "model": model, "messages": messages, "max_tokens": max_tokens, "stream": stream, "temperature": 0,
        "ignore_eos": True,
    }  # fmt: skip


def _picture(seed: int, side: int) -> str:
    """Blocks of noise: no two tiles are alike, and the file stays small."""
    blocks = Image.frombytes("RGB", (64, 64), random.Random(seed).randbytes(64 * 64 * 3))
    file = io.BytesIO()
    blocks.resize((side, side), Image.Resampling.BICUBIC).save(file, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def report(measured: Sequence[Measured], console: Console, *, is_tile: bool) -> bool:
    """Prints a row for each server; whether ours kept to one unit."""
    table = Table(
        "server", "ITL p50 alone, ms", "longest of each arrival p50, ms", "longest of all, ms", "one unit, ms",
        "longest / unit", "picture answered p50, s", "tiles", title=f"{len(measured[0].arrivals)} arrivals",
    )  # fmt: skip
    kept = True
    for one in measured:
        longest = [arrival.longest_s for arrival in one.arrivals]
        unit_s = one.unit_s(is_tile=is_tile)
        kept = kept and (unit_s is None or max(longest) <= ALLOWED * unit_s)
        table.add_row(
            one.name,
            f"{statistics.median(one.quiet) * 1e3:.1f}",
            f"{statistics.median(longest) * 1e3:.0f}",
            f"{max(longest) * 1e3:.0f}",
            "not told" if unit_s is None else f"{unit_s * 1e3:.0f}",
            "" if unit_s is None else f"{max(longest) / unit_s:.2f}",
            f"{statistics.median(arrival.answered_s for arrival in one.arrivals):.2f}",
            str(one.arrivals[0].tiles or "not told"),
        )
    console.print(table)
    return kept


def main() -> int:
    """Returns 1 when a stall was longer than a unit and a fifth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="a folder, or demo")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--arrivals", type=int, default=30)
    parser.add_argument("--side", type=int, default=1024, help="of the pictures, pixels; 1024 are 17 tiles of SmolVLM")
    parser.add_argument("--max-tokens", type=int, default=512, help="of the stream, which begins anew at its end")
    parser.add_argument("--unit", choices=("tile", "picture"), default="tile", help="what the family encodes at once")
    parser.add_argument("--ours", nargs="*", default=[], metavar="FLAG", help="more flags for opsin serve")
    parser.add_argument("--peer", metavar="URL", help="runs already")
    args = parser.parse_args()
    environment = {"OPSIN_LOCAL__NUM_THREADS": str(args.threads)}
    with ServerProcess(args.checkpoint, *args.ours, environment=environment) as server:
        measured = [asyncio.run(measure("opsin", server.until_ready(900), args))]
    if args.peer:
        measured.append(asyncio.run(measure("peer", args.peer, args)))
    return 0 if report(measured, Console(), is_tile=args.unit == "tile") else 1


if __name__ == "__main__":
    raise SystemExit(main())
