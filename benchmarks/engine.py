"""The local engine beside what the machine allows and beside other engines, figure by figure.

    python -m benchmarks.engine CHECKPOINT --vllm ENV/bin/vllm --transformers ENV/bin/transformers
    python -m benchmarks.engine CHECKPOINT --rows encode again

Without ``--vllm`` and ``--transformers`` nothing is compared with them. A peer runs in bfloat16 on as many threads,
compiled, and stands still (SIGSTOP) while another server is measured; all pictures are new to everybody unless a row
says otherwise. A row that fails or is not reached within ``--minutes`` is printed as that, and a target that is missed
as missed. ``CHECKPOINT`` has SmolVLM-256M's shape; how to make one is in README.md beside this file.

The load average is printed beside every figure. Above ``--max-load`` the run waits for it, then refuses. Between rows
it is our own echo for minutes, so there it is the processor time of everybody else that has to be low.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.arms import NotStarted
from benchmarks.ceilings import Product, ceiling, encode_speed, hf_eager_tpot, isolated
from benchmarks.chat_timing import Answer, picture, screenshots, text
from benchmarks.engine_lab import (
    INT8,
    OURS,
    QUESTION,
    TILED_SIDE,
    TILES,
    TRANSFORMERS,
    VLLM,
    Lab,
    Request,
    Watch,
    at_once,
    beside_a_stream,
    compact,
    counting_tiles,
    tiled,
)
from benchmarks.floor import Encoder
from opsin.engine.local.config import VisionDtype


@dataclass(frozen=True, slots=True)
class Target:
    """Bounds of a figure. ``at_most``: smaller is better."""

    required: float | None = None
    stretch: float | None = None
    at_most: bool = False

    def verdict(self, value: float) -> str:
        """In words."""
        if self.required is None:
            return ""
        for bound, word in ((self.stretch, "stretch"), (self.required, "met")):
            if bound is not None and (value <= bound if self.at_most else value >= bound):
                return word
        return "MISSED"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table; ``value`` is what the target is about, ``shown`` all that was measured."""

    figure: str
    shown: str
    value: float | None = None
    target: Target = Target()
    floor: str = ""
    peak_bytes: int | None = None
    load: float = 0.0


def encode(lab: Lab) -> list[Line]:
    """Vision encoder alone, in this engine's runner."""
    asked: list[tuple[VisionDtype, Product, Target]] = [
        ("bfloat16", "bfloat16", Target(0.68, 0.76)),
        ("int8", "int8", Target(0.40, 0.58)),
        ("auto", "bfloat16", Target(0.68, 0.76)),
    ]
    lines: list[Line] = []
    for vision_dtype, product, target in asked:
        with lab.measured() as watch:
            speed = isolated(encode_speed, lab.args.checkpoint, lab.args.threads, vision_dtype, (product,), 12)
        reached, tile_ms = speed.ceilings[product], statistics.median(speed.tile_ms)
        floor_ms = lab.encoder.flops / reached * 1e3
        spread = f"{min(speed.tile_ms):.0f}–{max(speed.tile_ms):.0f}"
        name = vision_dtype if vision_dtype == speed.runs_in else f"{vision_dtype}, which is {speed.runs_in} here"
        lines.append(
            Line(
                f"vision encode, {name}: share of the {product} ceiling",
                f"{floor_ms / tile_ms:.0%}, {tile_ms:.0f} ms per tile ({spread})",
                floor_ms / tile_ms,
                target,
                f"{floor_ms:.0f} ms at {reached / 1e9:.0f} GFLOP/s",
                speed.peak_bytes,
                watch.load,
            )
        )
    return lines


@dataclass
class Turns:
    """What one server did, round by round."""

    ttfts_s: list[float] = field(default_factory=list[float])
    prompt_tokens: int = 0
    peak_bytes: int = 0
    load: float = 0.0

    def add(self, answers: Sequence[Answer], watch: Watch) -> None:
        """One round."""
        self.ttfts_s += [answer.ttft_s for answer in answers]
        self.prompt_tokens = answers[-1].prompt_tokens
        self.peak_bytes, self.load = max(self.peak_bytes, watch.peak_bytes), max(self.load, watch.load)

    def times_sooner(self, other: Turns) -> list[float]:
        """Than the other one in the same round."""
        return [theirs / ours for theirs, ours in zip(other.ttfts_s, self.ttfts_s, strict=True)]


def ttft_compact(lab: Lab) -> list[Line]:
    """One picture of one tile, in eight rounds."""
    targets = {OURS: Target(1.05, 1.15), INT8: Target(1.3, 1.6)}
    return _against(lab, "TTFT, 1 compact picture", targets, lambda name: compact(lab, name), rounds=8, tiles=1)


def ttft_tiled(lab: Lab) -> list[Line]:
    """One picture of 17 tiles, in four rounds."""
    targets = {OURS: Target(1.1, 1.2), INT8: Target(1.3, 1.65)}
    return _against(lab, "TTFT, 17 tiles", targets, lambda _: tiled(lab.photo(TILED_SIDE)), rounds=4, tiles=TILES)


def _against(
    lab: Lab, figure: str, targets: dict[str, Target], request: Callable[[str], Request], *, rounds: int, tiles: int
) -> list[Line]:
    """TTFT of ours, and how many times sooner than vLLM's it is: the median over rounds, and their range.

    In turn, because a machine that is shared may be twice as fast a minute later.
    """
    names = [name for name in (VLLM, *targets) if lab.has(name)]
    turns = {name: Turns() for name in names}
    floors = _floors_s(lab)
    for _ in range(rounds):
        for name in names:
            turns[name].add(*lab.timed(name, request(name)))
    lines: list[Line] = []
    for name, turn in turns.items():
        ratios = [] if name == VLLM or VLLM not in turns else turn.times_sooner(turns[VLLM])
        ratio = statistics.median(ratios) if ratios else None
        shown = f"{statistics.median(turn.ttfts_s):.2f} s, {turn.prompt_tokens} tokens"
        if ratios:
            shown += f" = {ratio:.2f}x vLLM's ({min(ratios):.2f}–{max(ratios):.2f})"
        target = targets.get(name, Target())
        floor = f"{tiles * floors[name == INT8]:.2f} s of encoding"
        lines.append(Line(f"{figure}: {name}", shown, ratio, target, floor, turn.peak_bytes, turn.load))
    return lines


def _floors_s(lab: Lab) -> tuple[float, float]:
    """Of one tile, in the best float type and in int8, by products measured now."""
    with lab.measured():
        floats: tuple[Product, ...] = ("bfloat16", "float32")
        best = max(isolated(ceiling, product, lab.args.threads) for product in floats)
        return lab.encoder.flops / best, lab.encoder.flops / isolated(ceiling, "int8", lab.args.threads)


def throughput(lab: Lab) -> list[Line]:
    """Eight at once, compact pictures, 32 tokens each."""
    rates: dict[str, float] = {}
    lines: list[Line] = []
    floors = _floors_s(lab)
    for name in (VLLM, TRANSFORMERS, OURS, INT8):
        if not lab.has(name):
            continue
        num = 8 if name == TRANSFORMERS else 16
        requests = [compact(lab, name, 32) for _ in range(num)]
        with lab.measured(name) as watch:
            started = time.perf_counter()
            answers = asyncio.run(at_once(lab.running[name], requests, 8))
            rates[name] = num / (time.perf_counter() - started)
        tokens = statistics.mean(answer.tokens for answer in answers)
        shown = f"{rates[name]:.2f} requests per s, {tokens:.0f} tokens each"
        figure, floor = f"throughput, 8 at once, compact: {name}", f"{1 / floors[name == INT8]:.2f} at most"
        lines.append(Line(figure, shown, None, Target(), floor, watch.peak_bytes, watch.load))
    for peer, name, target in (
        (VLLM, OURS, Target(1.05, 1.15)),
        (VLLM, INT8, Target(1.25, 1.5)),
        (TRANSFORMERS, OURS, Target(2.5, 3.5)),
    ):
        if peer in rates:
            ratio = rates[name] / rates[peer]
            lines.append(Line(f"throughput, {name} against {peer}", f"{ratio:.2f}x", ratio, target))
    return lines


def again(lab: Lab) -> list[Line]:
    """The same picture of 17 tiles with another question, the picture first or the text first."""
    lines: list[Line] = []
    warm: dict[tuple[str, bool], float] = {}
    for name in (VLLM, OURS):
        if not lab.has(name):
            continue
        data = lab.photo(TILED_SIDE)
        turns = [tiled(data), *(tiled(data, f"Is there a {it}?") for it in ("tree", "house", "face"))]
        turns += [tiled(data, f"Look for a {it}.", text_first=True) for it in ("cloud", "wave", "street")]
        answers, watch = lab.timed(name, *turns)
        cold = answers[0].ttft_s
        for first, some, target in (("picture", answers[1:4], Target(25)), ("text", answers[4:], Target(12))):
            warm[name, first == "text"] = seconds = statistics.median(answer.ttft_s for answer in some)
            is_ours, ratio = name == OURS, cold / seconds
            peer = warm.get((VLLM, first == "text"))
            beside = f"; vLLM's {peer * 1e3:.0f} ms" if is_ours and peer else ""
            lines.append(
                Line(
                    f"same picture, next question, {first} first: {name}",
                    f"{seconds * 1e3:.0f} ms, {ratio:.0f}x of {cold:.1f} s cold{beside}",
                    ratio if is_ours else None,
                    target if is_ours else Target(),
                    "stretch: ahead of vLLM's" if is_ours else "",
                    watch.peak_bytes,
                    watch.load,
                )
            )
    return lines


def stream(lab: Lab) -> list[Line]:
    """Screenshots of 1920x1080; 5 % of the area changes from one to the next."""
    seconds: dict[str, float] = {}
    lines: list[Line] = []
    for name in (VLLM, OURS, INT8):
        if not lab.has(name):
            continue
        num = lab.args.screenshots if name != VLLM else min(lab.args.screenshots, 4)  # it encodes each anew
        requests = [Request((picture(data, "png"), text(QUESTION))) for data in screenshots(lab.maker, num)]
        with lab.measured(name) as watch:
            answers, tiles = asyncio.run(counting_tiles(lab.running[name], requests))
        seconds[name] = statistics.median(answer.ttft_s for answer in answers[1:])
        ratio = seconds[VLLM] / seconds[name] if name != VLLM and VLLM in seconds else None
        encoded = f", tiles encoded {' '.join(map(str, tiles))}" if tiles else ""
        shown = f"{seconds[name]:.2f} s, first {answers[0].ttft_s:.1f} s, {num} pictures{encoded}" + _times(ratio)
        target = Target(2.5, 4) if name == OURS else Target()
        lines.append(
            Line(
                f"screenshot stream, TTFT of 2 to {num}: {name}", shown, ratio, target, "", watch.peak_bytes, watch.load
            )
        )
    return lines


def tpot(lab: Lab) -> list[Line]:
    """Text only, 64 tokens, alone and eight at once."""
    lines: list[Line] = []
    for batch, against_eager in ((1, Target(1.4)), (8, Target(2.5))):
        seconds: dict[str, float] = {}
        for name in (VLLM, OURS):
            if not lab.has(name):
                continue
            requests = [Request((text(f"{number}. {QUESTION}"),), 64) for number in range(batch)]
            with lab.measured(name) as watch:
                asyncio.run(at_once(lab.running[name], requests, batch))  # shapes that are new cost once
                answers = asyncio.run(at_once(lab.running[name], requests, batch))
            seconds[name] = statistics.median(answer.tpot_s for answer in answers)
            shown = f"{seconds[name] * 1e3:.1f} ms, {answers[0].tokens} tokens"
            lines.append(Line(f"TPOT, batch {batch}: {name}", shown, None, Target(), "", watch.peak_bytes, watch.load))
        if VLLM in seconds:
            ratio = seconds[OURS] / seconds[VLLM]
            lines.append(
                Line(f"TPOT, batch {batch}, of vLLM's", f"{ratio:.2f}x", ratio, Target(1.7, 1.0, at_most=True))
            )
        if lab.args.hf_eager:
            with lab.measured() as watch:
                eager = isolated(hf_eager_tpot, lab.args.checkpoint, lab.args.threads, batch, 24)
            ratio = eager.seconds / seconds[OURS]
            shown, figure = (
                f"{ratio:.2f}x faster than {eager.seconds * 1e3:.1f} ms",
                f"TPOT, batch {batch}, against HF eager",
            )
            lines.append(Line(figure, shown, ratio, against_eager, "", eager.peak_bytes, watch.load))
    return lines


def stall(lab: Lab) -> list[Line]:
    """The longest pause of a stream while pictures of 17 tiles arrive, one after the other."""
    lines: list[Line] = []
    longest: dict[str, float] = {}
    for name in (VLLM, OURS, INT8):
        if not lab.has(name):
            continue
        num = lab.args.arrivals if name != VLLM else min(lab.args.arrivals, 3)
        requests = [tiled(lab.photo(TILED_SIDE)) for _ in range(num)]
        with lab.measured(name) as watch:
            pauses, answers = asyncio.run(beside_a_stream(lab.running[name], requests))
        longest[name] = max(pauses)
        units = [answer.stages_ms.get("vision_encode_ms", 0.0) / TILES for answer in answers]
        unit_ms = statistics.median(units)
        ratio = longest[name] * 1e3 / unit_ms if unit_ms else None
        of_unit = f", {ratio:.2f} units of {unit_ms:.0f} ms" if ratio else ""
        beside = f"; vLLM's {longest[VLLM]:.2f} s" if name != VLLM and VLLM in longest else ""
        p95 = statistics.quantiles(pauses, n=20)[-1]
        shown = f"{longest[name]:.2f} s over {num} arrivals{of_unit}, p95 {p95:.2f} s of {len(pauses)}{beside}"
        target = Target(1.2, at_most=True) if ratio else Target()
        floor = "stretch: shorter than vLLM's" if ratio else ""
        lines.append(Line(f"longest stall: {name}", shown, ratio, target, floor, watch.peak_bytes, watch.load))
    return lines


ROWS: dict[str, Callable[[Lab], list[Line]]] = {
    "encode": encode,
    "ttft-compact": ttft_compact,
    "ttft-tiled": ttft_tiled,
    "throughput": throughput,
    "again": again,
    "stream": stream,
    "tpot": tpot,
    "stall": stall,
}


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f" = {ratio:.2f}x vLLM's"


def main() -> int:
    """Prints the table; 1 when a target was missed or a row gave nothing."""
    args = _arguments()
    signal.signal(signal.SIGTERM, _terminated)
    args.out.mkdir(parents=True, exist_ok=True)
    console = Console(width=200)
    _wait_for_load(args, console)
    end = time.monotonic() + args.minutes * 60
    lines: list[Line] = []
    failed: list[str] = []
    with ExitStack() as stack:
        lab = Lab(args, Encoder.of(args.checkpoint), stack, console)
        for name in args.rows:
            if time.monotonic() > end:
                failed.append(f"{name}: not reached within {args.minutes:g} minutes")
                continue
            try:
                measured = ROWS[name](lab)
            except (Exception, NotStarted) as error:
                failed.append(f"{name}: {type(error).__name__}: {error}")
                console.print(failed[-1])
                continue
            lines += measured
            console.print(_table(measured, name))
    console.print(_table(lines, "all"))
    for problem in failed:
        console.print(problem)
    return 1 if failed or any(_verdict(line) == "MISSED" for line in lines) else 0


def _terminated(*_: object) -> None:
    """So that the servers end too."""
    sys.exit("terminated")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--vllm", metavar="PROGRAM", help="the command vllm of an environment with vLLM for CPUs")
    parser.add_argument(
        "--transformers", metavar="PROGRAM", help="the command transformers, with transformers[serving]"
    )
    parser.add_argument("--hf-eager", action=argparse.BooleanOptionalAction, default=True, help="in row tpot")
    parser.add_argument("--threads", type=int, default=2, help="of each")
    parser.add_argument("--screenshots", type=int, default=10, help="in row stream; vLLM gets 4 of them")
    parser.add_argument("--arrivals", type=int, default=4, help="in row stall; vLLM gets 3 of them")
    parser.add_argument("--minutes", type=float, default=25.0, help="after which no further row begins")
    parser.add_argument("--max-load", type=float, default=0.3, help="load average at the start, busy processors later")
    parser.add_argument("--patience", type=float, default=180.0, help="seconds to wait for a quiet machine")
    parser.add_argument("--anyway", action="store_true", help="measure on a busy machine")
    parser.add_argument("--out", type=Path, default=Path("engine-results"), help="for the logs of peers")
    return parser.parse_args()


def _wait_for_load(args: argparse.Namespace, console: Console) -> None:
    deadline = time.monotonic() + args.patience
    while (load := os.getloadavg()[0]) > args.max_load and not args.anyway:
        if time.monotonic() > deadline:
            raise SystemExit(f"load average {load:.2f}: above {args.max_load:g} figures are worthless (--anyway)")
        console.print(f"load average {load:.2f}, waiting …")
        time.sleep(10)


def _table(lines: Sequence[Line], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in ("figure", "floor", "required", "stretch", "result", "verdict", "peak MB", "load"):
        table.add_column(heading)
    for line in lines:
        peak = f"{line.peak_bytes / 1e6:.0f}" if line.peak_bytes else ""
        sign = "≤" if line.target.at_most else "≥"
        required, stretch = (
            "" if bound is None else f"{sign} {bound:g}" for bound in (line.target.required, line.target.stretch)
        )
        load = f"{line.load:.2f}" if line.load else ""
        table.add_row(line.figure, line.floor, required, stretch, line.shown, _verdict(line), peak, load)
    return table


def _verdict(line: Line) -> str:
    return "" if line.value is None else line.target.verdict(line.value)


if __name__ == "__main__":
    raise SystemExit(main())
