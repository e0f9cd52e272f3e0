"""Three tenants at one server, one of them abusive: what the other two notice of it.

    python -m benchmarks.tenants --seconds 5 --rounds 12

The demo model, 200 clients, open loop: each tenant's requests are due at random moments of a fixed rate, whatever
became of those before. `texts` asks without pictures, `pictures` with one that nobody has seen, both well within what
the server can do; `abuse` sends pictures from 160 clients, at many times that, under a key that allows it one request
in the engine and four on the way. Each round runs the two alone and then all three. Right are: the p95 of the two
within 1.5 of theirs alone, none of their requests refused, and every nonce in exactly one answer and one line of the
log. The exit status is 1 when anything was not right.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import random
import re
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from rich.console import Console
from rich.table import Table

from opsin.demo.tasks import held_out, text_only
from opsin.demo.wire import to_openai
from opsin.tenants.key_file import KeyFile
from opsin.tenants.keys import NO_LIMITS, Limits, new_key
from opsin.testing.chat_client import Reply, Unanswered, post
from opsin.testing.server_process import ServerProcess

MAX_RATIO = 1.5
MAX_TOKENS = 12
NUM_ABUSES = 64
_NONCE = re.compile(r"clients_id=(nonce-[0-9a-f]+)")


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who sends what. ``num_clients`` bounds its requests in flight; one that is due when all are busy is not sent."""

    name: str
    num_clients: int
    per_s: float
    with_pictures: bool
    limits: Limits = NO_LIMITS


TEXTS = Tenant("texts", 20, 3.0, with_pictures=False)
PICTURES = Tenant("pictures", 20, 2.0, with_pictures=True)
ABUSE = Tenant("abuse", 160, 40.0, with_pictures=True, limits=Limits(max_concurrency=1, max_queue=4))
TENANTS = (TEXTS, PICTURES, ABUSE)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request and its end. ``failure`` tells why there was no answer, or more than one."""

    tenant: str
    nonce: str
    latency_s: float
    reply: Reply | None = None
    failure: str | None = None

    @property
    def is_answered(self) -> bool:
        """By a whole answer or a refusal, to this request."""
        return self.reply is not None and self.reply.request_id == self.nonce


@dataclass(frozen=True, slots=True)
class Round:
    """The same load of the two, without abuse and with it."""

    alone: Sequence[Asked]
    beside: Sequence[Asked]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that has to be so."""

    name: str
    holds: bool
    value: str


async def load(url: str, keys: dict[str, str], mouths: Mapping[Tenant, Mouth], seconds: float) -> list[Asked]:
    """All requests of some tenants over so many seconds, each to its end."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as http:
        asked = await asyncio.gather(
            *(_of_tenant(http, url, keys[one.name], one, mouth, seconds) for one, mouth in mouths.items())
        )
    return [one for of_tenant in asked for one in of_tenant]


async def _of_tenant(
    http: aiohttp.ClientSession, url: str, key: str, tenant: Tenant, mouth: Mouth, seconds: float
) -> list[Asked]:
    chance, tasks, done = random.Random(tenant.name), set[asyncio.Task[Asked]](), list[Asked]()
    due = began = time.perf_counter()
    while due < began + seconds:
        due += chance.expovariate(tenant.per_s)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        if len(tasks) < tenant.num_clients:
            task = asyncio.create_task(_ask(http, url, key, tenant.name, mouth.next()))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            task.add_done_callback(lambda task: done.append(task.result()))
    while tasks:
        await asyncio.wait(set(tasks))
    return done


class Mouth:
    """What a tenant says, drawn before anything is measured: drawing would hold up the clock of all three."""

    def __init__(self, tenant: Tenant, num_bodies: int) -> None:
        chance = random.Random(tenant.name)
        self._bodies = itertools.cycle([_body(tenant, chance) for _ in range(num_bodies)])

    def next(self) -> bytes:
        """Not said before, unless all was."""
        return next(self._bodies)


def _body(tenant: Tenant, chance: random.Random) -> bytes:
    conversation = held_out(chance, "colour", "en") if tenant.with_pictures else text_only(chance, "en")
    fields = {"messages": to_openai(conversation), "max_tokens": MAX_TOKENS, "temperature": 0, "stream": True}
    return json.dumps(fields).encode()


async def _ask(http: aiohttp.ClientSession, url: str, key: str, tenant: str, body: bytes) -> Asked:
    nonce = f"nonce-{secrets.token_hex(8)}"
    began = time.perf_counter()
    reply: Reply | None = None
    failure: str | None = None
    try:
        reply = await post(http, url, body, {"authorization": f"Bearer {key}", "x-request-id": nonce})
    except (aiohttp.ClientError, Unanswered) as error:
        failure = f"{type(error).__name__}: {error}"
    return Asked(tenant, nonce, time.perf_counter() - began, reply, failure)


def p95_s(asked: Iterable[Asked], tenant: str) -> float:
    """Nearest rank, of answered requests of one tenant; infinite without any."""
    ordered = sorted(one.latency_s for one in asked if one.tenant == tenant and _is_good(one))
    return ordered[-(-len(ordered) * 95 // 100) - 1] if ordered else float("inf")


def checks(rounds: Sequence[Round], log: Iterable[str]) -> list[Check]:
    """The verdict. ``log`` are the server's lines."""
    asked = [one for each in rounds for one in (*each.alone, *each.beside)]
    logged = Counter(found[1] for line in log if (found := _NONCE.search(line)))
    lost = [one for one in asked if not one.is_answered]
    not_once = [one for one in asked if logged[one.nonce] != 1]
    refused = [one for one in asked if one.tenant != ABUSE.name and not _is_good(one)]
    statuses = Counter(_told(one) for one in asked if one.tenant == ABUSE.name)
    strange = statuses.keys() - {"200", "429 too_many_in_progress"}
    found = [
        Check("every nonce in exactly one answer", not lost, f"{len(asked)} sent, {len(lost)} not answered"),
        Check("and in exactly one line of the log", not not_once, f"{len(not_once)} not"),
        Check("none of the two's requests refused", not refused, f"{len(refused)} refused"),
        Check(
            "abuse is answered or told to wait", not strange, ", ".join(f"{n} x {told}" for told, n in statuses.items())
        ),
    ]
    for tenant in (TEXTS.name, PICTURES.name):
        alone = p95_s((one for each in rounds for one in each.alone), tenant)
        beside = p95_s((one for each in rounds for one in each.beside), tenant)
        told = f"{alone * 1e3:.0f} ms alone, {beside * 1e3:.0f} ms beside, {beside / alone:.2f} times"
        found.append(Check(f"p95 of {tenant} within {MAX_RATIO} times", beside <= MAX_RATIO * alone, told))
    return found


def _is_good(asked: Asked) -> bool:
    return asked.is_answered and asked.reply is not None and asked.reply.code is None


def _told(asked: Asked) -> str:
    if asked.reply is None:
        return asked.failure or "nothing"
    return f"{asked.reply.status} {asked.reply.code or ''}".strip()


async def make_keys(path: Path, tenants: Iterable[Tenant]) -> dict[str, str]:
    """A key for each, by name."""
    keys: dict[str, str] = {}
    for tenant in tenants:
        keys[tenant.name], kept = new_key(tenant.name, limits=tenant.limits)
        await KeyFile(path).add(kept)
    return keys


async def rounds_of(url: str, keys: dict[str, str], num_rounds: int, seconds: float) -> list[Round]:
    """After a warm-up that is not told."""
    needed = math.ceil(2 * num_rounds * seconds) + 10
    two = {tenant: Mouth(tenant, round(tenant.per_s * needed)) for tenant in (TEXTS, PICTURES)}
    three = {**two, ABUSE: Mouth(ABUSE, NUM_ABUSES)}
    await load(url, keys, two, min(3.0, seconds))
    return [
        Round(await load(url, keys, two, seconds), await load(url, keys, three, seconds)) for _ in range(num_rounds)
    ]


def main() -> int:
    """Runs and prints; returns 1 when anything was not right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="of each half of a round; short, so that a busy machine meets both"
    )
    parser.add_argument("--rounds", type=int, default=12)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys"
        keys = asyncio.run(make_keys(path, TENANTS))
        environment = {"OPSIN_LOCAL__NUM_THREADS": "1"}  # the demo model is no faster with more
        with ServerProcess("--api-keys-file", str(path), environment=environment) as server:
            rounds = asyncio.run(rounds_of(server.until_ready(), keys, args.rounds, args.seconds))
        verdict = checks(rounds, server.lines)
    table = Table("check", "", "found")
    for check in verdict:
        table.add_row(check.name, "right" if check.holds else "WRONG", check.value)
    Console(width=120).print(table)
    return int(not all(check.holds for check in verdict))


if __name__ == "__main__":
    raise SystemExit(main())
