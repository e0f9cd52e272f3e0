"""A soak: the real server under load, with clients that repeat themselves or leave and an engine that is killed twice.

    python benchmarks/soak.py --minutes 20 --clients 16

Right are: every request answered once, with what is in the picture or, around a kill, with a typed 503; one line in the
log per request; memory and descriptors of every process flat. Prints a table and a verdict; the exit status is 1 when
anything was not right. Ctrl-C ends it early and prints what there is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import aiohttp
import psutil
from rich.console import Console
from rich.table import Table

from opsin.demo.tasks import LANGUAGES, Conversation, held_out, text_only
from opsin.demo.wire import to_openai
from opsin.testing.chat_client import Reply, Unanswered, post
from opsin.testing.server_process import ServerProcess

TASKS = ("colour", "shape")
"""Questions about one picture that the demo model answers right: a thousand of a thousand."""
TEXT_SHARE, STREAM_SHARE, LEAVING_SHARE = 0.2, 0.5, 0.1
REPEAT_SHARE, NUM_RECENT = 0.2, 16
"""Questions that were asked not long ago, so that caches are met; a few, as the caches are small."""
SAMPLE_S = 5.0
AFTERMATH_S = 2.0
"""After the engine is back a request that came before may still be refused."""
DOWN_CODES = ("engine_died", "engine_unavailable", "engine_features_lost")
MAX_GROWTH_MB = 24.0
"""Of a process after its warm-up, by the slope of its resident memory. Allocators alone moved engines by up to 18 MB;
in ten minutes a leak of 3 KB per request would be more."""
WARM_UP_S = 45.0
"""A process that was watched for less than twice this time is not judged."""
MAX_MISTAKES_SHARE = 0.005
"""Answers that are wrong and come again when the same question is asked alone: the model's, not the server's."""
ENVIRONMENT = {
    "OPSIN_LOCAL__FEATURE_CACHE_BYTES": str(4 * 2**20),  # full soon, so that its filling is not growth
    "OPSIN_LOCAL__PREFIX_CACHE_BYTES": str(4 * 2**20),
    "OPSIN_LOCAL__NUM_THREADS": "1",  # the demo model is no faster with more
}

_CACHE_HITS = re.compile(r"^vlm_image_cache_hits_total (\S+)$", re.MULTILINE)
_ACCESS = re.compile(r"request_id=(chatcmpl-\S+) status=(\d+)")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request and what became of it; ``reply`` is None when its client left, ``failure`` tells what never came."""

    conversation: Conversation
    started_at: float
    ended_at: float
    reply: Reply | None = None
    failure: str | None = None

    @property
    def is_right(self) -> bool:
        """Whether the answer is a fact about the picture."""
        reply = self.reply
        return reply is not None and reply.code is None and reply.text.strip() == self.conversation.turns[-1].answer


@dataclass(slots=True)
class Outage:
    """From a kill of the engine until requests were answered again."""

    began_at: float
    ended_at: float = float("inf")

    def touches(self, asked: Asked) -> bool:
        """Whether the request was in progress meanwhile."""
        return asked.started_at <= self.ended_at + AFTERMATH_S and asked.ended_at >= self.began_at


@dataclass(frozen=True, slots=True)
class Sample:
    """One process at one moment."""

    at: float
    role: str
    pid: int
    rss_mb: float
    descriptors: int


@dataclass(slots=True)
class Record:
    """All that was seen."""

    asked: list[Asked] = field(default_factory=list[Asked])
    outages: list[Outage] = field(default_factory=list[Outage])
    samples: list[Sample] = field(default_factory=list[Sample])
    descriptors_before: int = 0
    descriptors_after: int = 0
    num_repeats: int = 0
    cache_hits: int = 0
    mistakes: list[Asked] = field(default_factory=list[Asked])
    wrong: list[Asked] = field(default_factory=list[Asked])


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the verdict."""

    name: str
    holds: bool
    detail: str


# Load


class Soak:
    """One server and all that happens to it."""

    def __init__(self, server: ServerProcess, url: str, rng: random.Random) -> None:
        self._server = server
        self._url = url
        self._rng = rng
        self._recent: deque[Conversation] = deque(maxlen=NUM_RECENT)
        self.record = Record()

    async def run(self, *, seconds: float, num_clients: int, console: Console) -> None:
        """Returns when the time is over or Ctrl-C was pressed; then nothing runs any more."""
        self.record.descriptors_before = await self._descriptors_at_rest()
        end = time.monotonic() + seconds
        jobs = [self._client(end) for _ in range(num_clients)]
        jobs += [self._sample(end), self._kill(seconds), self._show(end, console)]
        with suppress(asyncio.CancelledError):
            async with asyncio.TaskGroup() as group:
                for job in jobs:
                    group.create_task(job)
        self.record.cache_hits = await self._cache_hits()
        await self._examine()
        self.record.descriptors_after = await self._descriptors_at_rest()

    async def _client(self, end: float) -> None:
        async with aiohttp.ClientSession() as http:
            while time.monotonic() < end:
                asked = await self._ask(http, self._conversation())
                self.record.asked.append(asked)
                if asked.reply is not None and asked.reply.status == 503:
                    await asyncio.sleep(1.0)  # as Retry-After says

    def _conversation(self) -> Conversation:
        if self._recent and self._rng.random() < REPEAT_SHARE:
            self.record.num_repeats += 1
            return self._rng.choice(self._recent)
        language = self._rng.choice(LANGUAGES)
        if self._rng.random() < TEXT_SHARE:
            return text_only(self._rng, language)
        conversation = held_out(self._rng, self._rng.choice(TASKS), language)
        self._recent.append(conversation)
        return conversation

    async def _ask(self, http: aiohttp.ClientSession, conversation: Conversation) -> Asked:
        stream = self._rng.random() < STREAM_SHARE
        body = body_of(conversation, stream=stream)
        patience_s = self._rng.uniform(0, self._usual_s()) if self._rng.random() < LEAVING_SHARE else None
        started_at = time.monotonic()
        reply: Reply | None = None
        failure: str | None = None
        try:
            async with asyncio.timeout(patience_s):
                reply = await post(http, self._url, body)
        except TimeoutError:
            failure = None if patience_s is not None else "timeout"
        except (aiohttp.ClientError, Unanswered) as error:
            failure = f"{type(error).__name__}: {error}"
        except asyncio.CancelledError:
            self.record.asked.append(Asked(conversation, started_at, time.monotonic()))  # Ctrl-C: everybody leaves
            raise
        return Asked(conversation, started_at, time.monotonic(), reply, failure)

    def _usual_s(self) -> float:
        latest = [asked.ended_at - asked.started_at for asked in self.record.asked[-50:] if asked.reply]
        return statistics.median(latest) if latest else 1.0

    async def _kill(self, seconds: float) -> None:
        """After a third and after two thirds of the time."""
        for _ in range(2):
            await asyncio.sleep(seconds / 3)
            outage = Outage(time.monotonic())
            self.record.outages.append(outage)
            for engine in self._server.engines():
                engine.kill()
            await self._until_ready()
            outage.ended_at = time.monotonic()

    async def _until_ready(self) -> None:
        async with aiohttp.ClientSession() as http:
            is_down_yet, is_up = False, False
            while not (is_down_yet and is_up):
                await asyncio.sleep(0.05)
                async with http.get(f"{self._url}/ready") as response:
                    is_up = response.status == 200
                is_down_yet = is_down_yet or not is_up

    async def _sample(self, end: float) -> None:
        while time.monotonic() < end:
            self.record.samples += sample(self._server)
            await asyncio.sleep(SAMPLE_S)

    async def _show(self, end: float, console: Console) -> None:
        with console.status("") as status:
            while (left_s := end - time.monotonic()) > 0:
                newest = {one.role: f"{one.role} {one.rss_mb:.0f} MB" for one in self.record.samples[-8:]}
                status.update(f"{left_s:.0f} s left, {len(self.record.asked)} requests, {', '.join(newest.values())}")
                await asyncio.sleep(1.0)

    async def _examine(self) -> None:
        """Asks once more, alone, what was answered wrong: the model may be mistaken, the server may not."""
        async with aiohttp.ClientSession() as http:
            for asked in self.record.asked:
                if asked.reply is None or asked.reply.code is not None or asked.is_right:
                    continue
                again = await post(http, self._url, body_of(asked.conversation, stream=False))
                same = again.code is None and again.text == asked.reply.text
                (self.record.mistakes if same else self.record.wrong).append(asked)

    async def _cache_hits(self) -> int:
        """Pictures whose features were found, over all engines that lived."""
        async with aiohttp.ClientSession() as http, http.get(f"{self._url}/metrics") as response:
            found = _CACHE_HITS.search(await response.text())
        return int(float(found[1])) if found else 0

    async def _descriptors_at_rest(self) -> int:
        """Of the gateway, once the number stays the same for a while."""
        seen: list[int] = []
        while len(seen) < 10 or len(set(seen[-10:])) > 1:
            seen.append(self._server.gateway().num_fds())
            await asyncio.sleep(0.1)
        return seen[-1]


def body_of(conversation: Conversation, *, stream: bool) -> bytes:
    """A greedy request."""
    messages = to_openai(conversation)
    return json.dumps({"messages": messages, "stream": stream, "max_tokens": 96, "temperature": 0}).encode()


def sample(server: ServerProcess) -> list[Sample]:
    """Memory and descriptors of every process, now."""
    processes = [("gateway", server.gateway())]
    processes += [("engine", process) for process in server.engines()]
    processes += [("renderer", process) for process in server.renderers()]
    now = time.monotonic()
    samples: list[Sample] = []
    for role, process in processes:
        with suppress(psutil.Error):  # killed meanwhile
            rss_mb = process.memory_info().rss / 2**20
            samples.append(Sample(now, role, process.pid, rss_mb, process.num_fds()))
    return samples


# Verdict


def checks(record: Record, lines: Sequence[str]) -> Iterator[Check]:
    """What has to hold."""
    yield _answered(record)
    yield _refused_only_around_kills(record)
    yield _answers_right(record)
    yield from _logged_once(record, lines)
    yield _recovered(record)
    yield _repeats_found(record)
    yield from _flat(record)


def _answered(record: Record) -> Check:
    failures = [asked.failure for asked in record.asked if asked.failure]
    return Check("every request was answered", not failures, "; ".join(failures[:3]) or f"{len(record.asked)} requests")


def _refused_only_around_kills(record: Record) -> Check:
    refused = [asked for asked in record.asked if asked.reply and asked.reply.code]
    strange = [
        asked
        for asked in refused
        if asked.reply
        and not (asked.reply.code in DOWN_CODES and any(outage.touches(asked) for outage in record.outages))
    ]
    detail = "; ".join(f"{asked.reply.status} {asked.reply.code}" for asked in strange[:3] if asked.reply)
    return Check("refused only around a kill", not strange, detail or f"{len(refused)} typed 503")


def _answers_right(record: Record) -> Check:
    num_answers = sum(asked.reply is not None and asked.reply.code is None for asked in record.asked)
    mistakes = len(record.mistakes)
    detail = f"{num_answers} answers, {mistakes} mistakes of the model"
    if record.wrong:
        one = record.wrong[0]
        detail += f"; {len(record.wrong)} came otherwise when asked alone, as {one.reply and one.reply.text!r}"
    holds = not record.wrong and mistakes <= MAX_MISTAKES_SHARE * num_answers and num_answers > 0
    return Check("answers are right", holds, detail)


def _logged_once(record: Record, lines: Sequence[str]) -> Iterator[Check]:
    """Requests whose client left may not have reached the server at all."""
    found = [match for match in map(_ACCESS.search, lines) if match]
    ids = Counter(match[1] for match in found)
    twice = sum(count > 1 for count in ids.values())
    yield Check("no id twice in the log", not twice, f"{len(found)} lines, {twice} ids more than once")
    replies = [asked.reply for asked in record.asked if asked.reply]
    missing = sum(reply.request_id not in ids for reply in replies)
    num_left = len(record.asked) - len(replies)
    extra = len(ids) - len(replies) - len(record.mistakes) - len(record.wrong)
    holds = not missing and 0 <= extra <= num_left
    yield Check("every answer in the log", holds, f"{missing} missing; {num_left} clients left, {extra} of them logged")


def _recovered(record: Record) -> Check:
    down_s = [outage.ended_at - outage.began_at for outage in record.outages]
    holds = all(seconds < float("inf") for seconds in down_s)
    return Check("the engine came back", holds, ", ".join(f"after {seconds:.1f} s" for seconds in down_s) or "no kill")


def _repeats_found(record: Record) -> Check:
    """Some came when their features had gone, with the engine or for newer ones."""
    found = f"{record.num_repeats} repeats, {record.cache_hits} pictures found in the cache"
    return Check("repeated pictures are found", record.cache_hits > 0 or not record.num_repeats, found)


def _flat(record: Record) -> Iterator[Check]:
    growths = {
        f"{role} {pid}": grown
        for (role, pid), samples in by_process(record.samples).items()
        if (grown := growth_mb(samples, record.outages)) is not None
    }
    worst = max(growths.values(), default=0.0)
    detail = ", ".join(f"{name} {mb:+.1f} MB" for name, mb in growths.items()) or "too short to tell"
    yield Check(f"memory is flat (at most {MAX_GROWTH_MB:g} MB)", worst <= MAX_GROWTH_MB, detail)
    before, after = record.descriptors_before, record.descriptors_after
    yield Check("descriptors are flat", before == after, f"{before} before, {after} after")


def by_process(samples: Sequence[Sample]) -> dict[tuple[str, int], list[Sample]]:
    """Samples of each process, in order."""
    found: defaultdict[tuple[str, int], list[Sample]] = defaultdict(list)
    for one in samples:
        found[one.role, one.pid].append(one)
    return dict(found)


def growth_mb(samples: Sequence[Sample], outages: Sequence[Outage]) -> float | None:
    """Slope of the memory after loading and warm-up, times its duration; None when that is too short to tell."""
    loaded = [one for one in samples if not any(outage.began_at <= one.at <= outage.ended_at for outage in outages)]
    warm = [one for one in loaded if one.at >= loaded[0].at + WARM_UP_S]
    if not warm or warm[-1].at < loaded[0].at + 2 * WARM_UP_S:
        return None
    times, sizes = [one.at for one in warm], [one.rss_mb for one in warm]
    return statistics.linear_regression(times, sizes).slope * (times[-1] - times[0])


# Report


def report(record: Record, verdict: Sequence[Check], console: Console) -> None:
    """Prints tables and verdict."""
    requests = Table("answer", "requests", "p50 s", "p99 s", title="requests")
    for name, belongs in _KINDS.items():
        seconds = sorted(asked.ended_at - asked.started_at for asked in record.asked if belongs(asked))
        if seconds:
            p99 = seconds[min(len(seconds) - 1, int(len(seconds) * 0.99))]
            requests.add_row(name, str(len(seconds)), f"{statistics.median(seconds):.2f}", f"{p99:.2f}")
    console.print(requests)
    processes = Table("process", "samples", "RSS MB first", "last", "highest", "descriptors lowest", "highest")
    for (role, pid), samples in by_process(record.samples).items():
        sizes = [one.rss_mb for one in samples]
        descriptors = [one.descriptors for one in samples]
        processes.add_row(
            f"{role} {pid}", str(len(samples)), *(f"{mb:.1f}" for mb in (sizes[0], sizes[-1], max(sizes))),
            *(str(number) for number in (min(descriptors), max(descriptors))),
        )  # fmt: skip
    console.print(processes)
    for check in verdict:
        console.print(f"{'ok    ' if check.holds else 'FAILED'}  {check.name}: {check.detail}", highlight=False)


_KINDS: dict[str, Callable[[Asked], bool]] = {
    "right": lambda asked: asked.is_right,
    "wrong": lambda asked: asked.reply is not None and asked.reply.code is None and not asked.is_right,
    "refused": lambda asked: asked.reply is not None and asked.reply.code is not None,
    "client left": lambda asked: asked.reply is None and asked.failure is None,
    "never": lambda asked: asked.failure is not None,
}


def main() -> int:
    """Runs the soak; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    args = parser.parse_args()
    console = Console(stderr=True)
    console.print(f"seed {args.seed}")
    with ServerProcess(environment=ENVIRONMENT, shielded=True) as server:
        soak = Soak(server, server.until_ready(), random.Random(args.seed))
        asyncio.run(soak.run(seconds=60 * args.minutes, num_clients=args.clients, console=console))
    verdict = [*checks(soak.record, server.lines), Check("the server ended well", server.wait() == 0, "")]
    report(soak.record, verdict, Console())
    return 0 if all(check.holds for check in verdict) else 1


if __name__ == "__main__":
    raise SystemExit(main())
