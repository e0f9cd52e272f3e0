"""Ours and a peer on the same checkpoint, the same pictures and the same machine, level by level in turn.

    python benchmarks/serve_vs_peer.py CHECKPOINT --threads 2 --peer-command 'vllm serve {model} --port {port} …'
    python benchmarks/serve_vs_peer.py CHECKPOINT --threads 2 --peer http://127.0.0.1:8101

Each level of each round has pictures of its own, which both servers meet once, so no cache helps anyone; who goes first
changes from round to round. A peer that this script started stands still (SIGSTOP) while ours is measured, and ours
while the peer is: an idle server that polls would take a core from the other. Prints floor, target and result side by
side; the results of every run stay in ``--out``. How to start a peer fairly: README.md beside this file.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import statistics
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from arms import Arm, foreign, ours, standing_still
from floor import Encoder, peak_flops
from rich.console import Console
from rich.table import Table

from opsin.bench.config import checked
from opsin.bench.level import LevelSummary
from opsin.bench.live import live
from opsin.bench.record import Writer, read
from opsin.bench.run import run
from opsin.bench.summary import Summary, Verdict, summarise


@dataclass(frozen=True, slots=True)
class Quantity:
    """One row of the comparison. ``floor``: from the seconds that a request's tiles take; None: none is known."""

    name: str
    of: Callable[[LevelSummary], float | None]
    is_rate: bool
    floor: Callable[[float], float] | None = None


QUANTITIES = (
    Quantity("TTFT p50, ms", lambda level: level.latency_ms["ttft"].at(0.5).value, False, lambda s: s * 1e3),
    Quantity("TPOT p50, ms", lambda level: level.latency_ms["tpot"].at(0.5).value, False),
    Quantity("content complete p50, ms", lambda level: level.latency_ms["e2e"].at(0.5).value, False, lambda s: s * 1e3),
    Quantity("requests per s", lambda level: (level.rates.steady or level.rates.whole).requests, True, lambda s: 1 / s),
)


def main() -> int:
    """Measures and prints; returns 1 if a run was not valid."""
    args = _arguments()
    encoder = Encoder.of(args.checkpoint)
    tile_s = encoder.flops / peak_flops(encoder, args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        our_arm = stack.enter_context(ours(args.checkpoint, args.threads, *shlex.split(args.ours)))
        peer = stack.enter_context(_peer(args))
        summaries = _measure(args, our_arm, peer)
    _print(args, summaries, encoder, tile_s)
    bad = [one for runs in summaries.values() for one in runs if one.verdict is not Verdict.VALID]
    for one in bad:
        print(f"{one.verdict}: {'; '.join(one.reasons)}")
    return 1 if bad else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--threads", type=int, required=True, help="of ours; give the peer as many")
    peer = parser.add_mutually_exclusive_group(required=True)
    peer.add_argument("--peer", metavar="URL", help="runs already")
    peer.add_argument("--peer-command", metavar="WORDS", help="started here; {model} and {port} are filled in")
    parser.add_argument("--peer-pid", type=int, help="of a running peer: it is stopped while ours is measured")
    parser.add_argument("--ours", default="", metavar="FLAGS", help="more flags for opsin serve")
    parser.add_argument("--max-concurrency", nargs="+", type=int, default=[1, 4, 8])
    parser.add_argument("--num-prompts", type=int, default=24, help="per level and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", default="1")
    parser.add_argument("--resolution", default="512x512")
    parser.add_argument("--detail", default=None)
    parser.add_argument("--output-len", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("peer-results"))
    return parser.parse_args()


@contextmanager
def _peer(args: argparse.Namespace) -> Generator[Arm]:
    if args.peer is not None:
        yield Arm("peer", args.peer, args.peer_pid)
        return
    with foreign("peer", args.peer_command, args.checkpoint, args.out / "peer.log") as arm:
        yield arm


def _measure(args: argparse.Namespace, our_arm: Arm, peer: Arm) -> dict[tuple[str, int], list[Summary]]:
    """By arm and concurrency, one summary per round."""
    summaries: dict[tuple[str, int], list[Summary]] = {}
    for number in range(args.rounds):
        for level, concurrency in enumerate(args.max_concurrency):
            arms = (our_arm, peer) if number % 2 == 0 else (peer, our_arm)
            for arm, other in (arms, arms[::-1]):
                seed = args.seed + 1000 * number + level  # both arms meet the same pictures, and meet them once
                with standing_still(other):
                    summary = asyncio.run(_run(args, arm, concurrency, seed))
                summaries.setdefault((arm.name, concurrency), []).append(summary)
    return summaries


async def _run(args: argparse.Namespace, arm: Arm, concurrency: int, seed: int) -> Summary:
    values = {
        "url": arm.url,
        "max_concurrency": [concurrency],
        "num_prompts": args.num_prompts,
        "images": args.images,
        "resolution": args.resolution,
        "output_len": args.output_len,
        "ignore_eos": True,
        "seed": seed,
        "server_pid": arm.pid,
        **({"detail": args.detail} if args.detail else {}),
    }
    path = args.out / f"{arm.name}-{concurrency}-{seed}.jsonl"
    writer = Writer(path.open("wb"))
    with live(Console(stderr=True)) as watcher:
        await run(checked(values), writer.write, watcher, interrupt=asyncio.Event())
    writer.close()
    return summarise(read(path))


def _print(
    args: argparse.Namespace, summaries: dict[tuple[str, int], list[Summary]], encoder: Encoder, tile_s: float
) -> None:
    tiles = _tiles(summaries, encoder)
    tokens = "unknown" if tiles is None else f"{tiles * encoder.tokens:g} visual tokens ({tiles:g} tiles) per request"
    title = f"{tokens}; floor: encoding alone, {tile_s * 1e3:.0f} ms per tile; median of {args.rounds} rounds (range)"
    table = Table(title=title, title_justify="left")
    for heading in ("concurrency", "quantity", "floor", "target: the peer", "result: opsin", "opsin / peer"):
        table.add_column(heading, justify="left" if heading == "quantity" else "right")
    for concurrency in args.max_concurrency:
        for quantity in QUANTITIES:
            ours, theirs = (_values(summaries[name, concurrency], quantity) for name in ("opsin", "peer"))
            floor = _floor(quantity, concurrency, tile_s, tiles)
            cells = (floor, _spread(theirs), _spread(ours), _ratio(ours, theirs))
            table.add_row(str(concurrency), quantity.name, *cells)
        table.add_section()
    Console(width=130).print(table)


def _tiles(summaries: dict[tuple[str, int], list[Summary]], encoder: Encoder) -> float | None:
    """Per request, by the visual tokens that our server counted."""
    level = next(iter(summaries.values()))[0].levels[0]
    of = next(iter(summaries.values()))[0].card.images_per_request
    told = level.visual_tokens_per_image
    return None if told is None or told.mean is None or of is None else told.mean / encoder.tokens * of.median


def _floor(quantity: Quantity, concurrency: int, tile_s: float, tiles: float | None) -> str:
    """A latency of several requests at once has no simple floor: who is first does not wait for the others."""
    if quantity.floor is None or tiles is None or (concurrency > 1 and not quantity.is_rate):
        return "—"
    return f"{quantity.floor(tile_s * tiles):.3g}"


def _values(runs: Sequence[Summary], quantity: Quantity) -> list[float]:
    return [value for one in runs if (value := quantity.of(one.levels[0])) is not None]


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    if not ours or not theirs or statistics.median(theirs) == 0:
        return "—"
    return f"{statistics.median(ours) / statistics.median(theirs):.2f}"


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "—"
    return f"{statistics.median(values):.3g} ({min(values):.3g}–{max(values):.3g})"


if __name__ == "__main__":
    raise SystemExit(main())
