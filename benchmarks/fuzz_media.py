"""A fuzzer: strangers' pictures, URLs and bodies, on the parsers themselves and on the real server.

    python -m benchmarks.fuzz_media --minutes 10

The first third of the time goes to the code that reads headers, data URLs and URLs, in this process
(``fuzz_parsers``); the rest to a server with the demo model, all formats, and pictures by URL from a web server of this
process (``fuzz_requests``). Right are: a value or a documented error, and no 5xx; an answer to everything within a
minute; no text of a request or of a library in an error or in the log; memory and descriptors flat; ``/health`` fine.
Prints tables and a verdict; the exit status is 1 when anything was not right. Bodies that got a wrong answer are
written to ``--found``. Nothing leaves this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from rich.console import Console
from rich.table import Table

from benchmarks.fuzz_parsers import GOOD, Finding, Tried, fuzz, parser_targets
from benchmarks.fuzz_requests import CANARY, ORIGIN_PATH, Attempt, Requests
from benchmarks.soak import ENVIRONMENT, SAMPLE_S, Check, Sample, by_process, growth_mb, sample
from opsin.core.errors import Code
from opsin.media.types import ImageFormat
from opsin.testing.chat_client import Reply, Unanswered, post
from opsin.testing.scripted_origin import Mode, ScriptedOrigin
from opsin.testing.server_process import ServerProcess

MAX_ANSWER_S = 60.0
"""Three times the sum of all deadlines that one picture can meet under the settings as they come."""
MAX_GROWTH_MB = 24.0
"""Of the gateway and the engine, as in ``soak``; workers that decode are replaced after 1000 pictures."""
OVERLOAD = {Code.OVERLOADED, Code.RENDER_WORKER_KILLED}
JUDGED_ROLES = ("gateway", "engine")
_FOREIGN = re.compile(
    r"Traceback|File \"|site-packages|\.py\b|Pillow|PIL\.|libpng|libjpeg|zlib|pillow_heif|cannot identify|"
    r"pydantic|aiohttp|yarl|Errno|object at 0x|Exception|ValueError|TypeError|KeyError"
)
"""Words of libraries, of Python and of its files."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One request and its answer; ``failure`` tells what came instead of one."""

    attempt: Attempt
    seconds: float
    reply: Reply | None = None
    failure: str = ""

    @property
    def outcome(self) -> str:
        """Status and code."""
        if self.reply is None:
            return self.failure
        return f"{self.reply.status} {self.reply.code or GOOD}"

    @property
    def wrong(self) -> str:
        """Why this is a finding; empty when it is none."""
        reply = self.reply
        if reply is None:
            return f"no answer: {self.failure}"
        if reply.code is None:
            return "" if reply.status == 200 else f"an answer under {reply.status}"
        if reply.code not in set(Code):
            return f"undocumented code {reply.code}"
        if (reply.status >= 500 or reply.in_band) and reply.code not in OVERLOAD:
            return f"{reply.status} {reply.code}"
        if CANARY in reply.message or _FOREIGN.search(reply.message):
            return f"the message says too much: {reply.message[:200]}"
        return "" if self.attempt.kind != GOOD else f"a good request got {self.outcome}"


@dataclass(slots=True)
class Record:
    """All that was seen of the server."""

    answered: list[Answered] = field(default_factory=list[Answered])
    samples: list[Sample] = field(default_factory=list[Sample])
    health: list[int] = field(default_factory=list[int])
    """Statuses of ``/health``."""
    descriptors_before: int = 0
    descriptors_after: int = 0


class Attack:
    """One server and all that is sent to it."""

    def __init__(self, server: ServerProcess, url: str, requests: Requests) -> None:
        self._server = server
        self._url = url
        self._requests = requests
        self.record = Record()

    async def run(self, seconds: float, num_clients: int) -> None:
        """Fills the record."""
        self.record.answered.append(await self._ask(self._requests.good()))
        self.record.descriptors_before = await self._descriptors_at_rest()
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(num_clients):
                group.create_task(self._client(end))
            group.create_task(self._watch(end))
        self.record.answered.append(await self._ask(self._requests.good()))
        self.record.descriptors_after = await self._descriptors_at_rest()

    async def _client(self, end: float) -> None:
        while time.monotonic() < end:
            self.record.answered.append(await self._ask(self._requests.draw()))

    async def _ask(self, attempt: Attempt) -> Answered:
        """On a connection of its own: the server may close one that idles while this process is busy."""
        began = time.monotonic()
        reply, failure = None, ""
        try:
            async with asyncio.timeout(MAX_ANSWER_S), aiohttp.ClientSession() as http:
                reply = await post(http, self._url, attempt.body)
        except TimeoutError:
            failure = f"nothing within {MAX_ANSWER_S:g} s"
        except (aiohttp.ClientError, Unanswered, KeyError, ValueError) as error:
            failure = f"{type(error).__name__}: {error}"
        return Answered(attempt, time.monotonic() - began, reply, failure)

    async def _watch(self, end: float) -> None:
        while time.monotonic() < end:
            self.record.samples += sample(self._server)
            async with aiohttp.request("GET", f"{self._url}/health") as response:
                self.record.health.append(response.status)
                await asyncio.sleep(min(SAMPLE_S, max(0.0, end - time.monotonic())))

    async def _descriptors_at_rest(self) -> int:
        """Of the gateway, once the number stays the same for a while."""
        seen: list[int] = []
        while len(seen) < 20 or len(set(seen[-20:])) > 1:
            seen.append(self._server.gateway().num_fds())
            await asyncio.sleep(0.1)
        return seen[-1]


async def attack(
    chance: random.Random, seconds: float, num_clients: int, engine: str
) -> tuple[Record, Sequence[str], int]:
    """What was seen, the server's log, and its exit status."""
    modes: dict[str, Mode] = {}
    origin = ScriptedOrigin(modes)
    async with origin.serve():
        requests = Requests(chance, f"http://127.0.0.1:{origin.port}")
        modes[ORIGIN_PATH] = requests.answers
        with ServerProcess(*_arguments(origin.port, engine), environment=ENVIRONMENT) as server:
            url = await asyncio.to_thread(server.until_ready)
            attack = Attack(server, url, requests)
            await attack.run(seconds, num_clients)
        return attack.record, server.lines, server.wait()


def _arguments(origin_port: int, engine: str) -> tuple[str, ...]:
    """All formats, and pictures by URL from this machine."""
    return (
        *("--engine", engine, "--media-formats", *ImageFormat),
        *("--allowed-media-domains", "127.0.0.1", "localhost", "--allow-plain-http", "--allow-ip-literals"),
        *("--allowed-private-networks", "127.0.0.0/8", "--allowed-media-ports", str(origin_port)),
        *("--max-media-redirects", "3", "--max-model-len", "2048"),
    )


# Verdict


def checks(findings: Sequence[Finding], record: Record, lines: Sequence[str]) -> Iterator[Check]:
    """What has to hold."""
    kinds = ", ".join(finding.kind for finding in findings)
    yield Check("parsers give a value or a documented error", not findings, kinds or "no finding")
    wrong = [answered for answered in record.answered if answered.wrong]
    detail = "; ".join(f"{one.attempt.kind}: {one.wrong}" for one in wrong[:3])
    yield Check("every answer is right", not wrong, detail or f"{len(record.answered)} requests")
    slowest = max((one.seconds for one in record.answered), default=0.0)
    yield Check(f"answered within {MAX_ANSWER_S:g} s", slowest < MAX_ANSWER_S, f"the slowest after {slowest:.1f} s")
    said = [line for line in lines if CANARY in line or _FOREIGN.search(line)]
    yield Check("the log repeats nothing", not said, said[0][:200] if said else f"{len(lines)} lines")
    bad = [status for status in record.health if status != 200]
    yield Check("/health answers", bool(record.health) and not bad, f"{len(record.health)} times, {len(bad)} not 200")
    yield from _flat(record)


def _flat(record: Record) -> Iterator[Check]:
    growths = {
        f"{role} {pid}": grown
        for (role, pid), samples in by_process(record.samples).items()
        if role in JUDGED_ROLES and (grown := growth_mb(samples, ())) is not None
    }
    detail = ", ".join(f"{name} {mb:+.1f} MB" for name, mb in growths.items()) or "too short to tell"
    holds = max(growths.values(), default=0.0) <= MAX_GROWTH_MB
    yield Check(f"memory is flat (at most {MAX_GROWTH_MB:g} MB)", holds, detail)
    before, after = record.descriptors_before, record.descriptors_after
    yield Check("descriptors are flat", before == after, f"{before} before, {after} after")


# Report


def report(tried: Tried, record: Record, verdict: Sequence[Check], console: Console) -> None:
    """Prints tables and verdict."""
    console.print(_table("parsers", tried.outcomes))
    outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for one in record.answered:
        outcomes[one.attempt.kind][one.outcome] += 1
    console.print(_table("requests", outcomes))
    processes = Table("process", "samples", "RSS MB first", "last", "highest", title="processes")
    for (role, pid), samples in by_process(record.samples).items():
        if len(samples) < 2:
            continue  # a renderer that strange pictures had replaced
        sizes = [one.rss_mb for one in samples]
        figures = (f"{mb:.1f}" for mb in (sizes[0], sizes[-1], max(sizes)))
        processes.add_row(f"{role} {pid}", str(len(samples)), *figures)
    console.print(processes)
    for finding in tried.findings:
        console.print(f"{finding.kind}: {finding.what}\n{finding.example}", highlight=False, markup=False)
    for check in verdict:
        line = f"{'ok    ' if check.holds else 'FAILED'}  {check.name}: {check.detail}"
        console.print(line, highlight=False, markup=False)


def _table(title: str, outcomes: dict[str, Counter[str]]) -> Table:
    table = Table("kind", "inputs", "outcomes", title=title)
    for kind, counts in sorted(outcomes.items()):
        table.add_row(kind, str(counts.total()), ", ".join(f"{name} {count}" for name, count in counts.most_common()))
    return table


def keep(record: Record, folder: Path) -> None:
    """Writes the bodies of wrong answers, each with its reason beside it."""
    for number, one in enumerate(one for one in record.answered if one.wrong):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.json").write_bytes(one.attempt.body)
        (folder / f"{number}.txt").write_text(f"{one.attempt.kind}\n{one.wrong}\n")


def main() -> int:
    """Runs the fuzzer; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--engine", choices=("local", "fake"), default="local", help="fake spends its time on pictures")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--found", type=Path, default=Path(".fuzz-found"))
    args = parser.parse_args()
    Console(stderr=True).print(f"seed {args.seed}")
    chance, seconds = random.Random(args.seed), 60 * args.minutes
    tried = fuzz(parser_targets(), chance, seconds / 3)
    record, lines, status = asyncio.run(attack(chance, seconds * 2 / 3, args.clients, args.engine))
    verdict = [*checks(tried.findings, record, lines), Check("the server ended well", status == 0, "")]
    report(tried, record, verdict, Console())
    keep(record, args.found)
    return 0 if all(check.holds for check in verdict) else 1


if __name__ == "__main__":
    raise SystemExit(main())
