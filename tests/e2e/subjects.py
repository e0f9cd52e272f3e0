"""A real server under test: what it is asked, what it holds, and what it wrote into its log."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from opsin.demo.tasks import Conversation, held_out
from opsin.demo.wire import to_openai
from opsin.testing.chat_client import Reply, post
from opsin.testing.server_process import ServerProcess
from tests.conftest import ONE_THREAD
from tests.e2e.asking import fresh_rng

PATIENCE_S = 120.0
"""For what must come on any machine, however busy."""

_TORCHS_OWN = "torchinductor_*"
"""An empty cache folder that PyTorch makes once per user."""
_ACCESS = re.compile(r"request_id=(chatcmpl-\S+) status=(\d+)(?: code=(\S+))?")


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a server holds while nobody asks it anything."""

    gateway_descriptors: int
    engine_descriptors: tuple[int, ...]
    renderers: int
    zombies: int
    files: frozenset[str]


@dataclass(frozen=True, slots=True)
class AccessLine:
    """One answer in the log."""

    request_id: str
    status: int
    code: str | None


@dataclass(slots=True)
class Subject:
    """A server under test. ``name`` says what was injected; ``folder`` is its directory for temporary files."""

    name: str
    server: ServerProcess
    url: str
    folder: Path
    rng: random.Random = field(default_factory=fresh_rng)
    num_sent: int = 0

    async def send(
        self, http: aiohttp.ClientSession, body: bytes | AsyncIterator[bytes], headers: Mapping[str, str] | None = None
    ) -> Reply:
        self.num_sent += 1
        return await post(http, self.url, body, headers)

    def question(self) -> Conversation:
        """About a new picture, so that no cache helps, and of a kind that the demo model always answers right."""
        return held_out(self.rng, "colour", "en")

    async def answers_right(self, http: aiohttp.ClientSession) -> None:
        conversation = self.question()
        check_right(await self.send(http, body_of(conversation)), conversation)

    async def is_ready(self, http: aiohttp.ClientSession) -> bool:
        async with http.get(f"{self.url}/ready") as response:
            return response.status == 200

    async def round_trip(self, http: aiohttp.ClientSession) -> None:
        """Whatever was sent before is in the server's hands afterwards."""
        for _ in range(2):
            async with http.get(f"{self.url}/health") as response:
                assert response.status == 200

    def holdings(self) -> Holdings:
        return Holdings(
            gateway_descriptors=self.server.gateway().num_fds(),
            engine_descriptors=tuple(engine.num_fds() for engine in self.server.engines()),
            renderers=len(self.server.renderers()),
            zombies=len(self.server.zombies()),
            files=frozenset(str(path) for path in self.folder.rglob("*")),
        )

    def access_lines(self) -> list[AccessLine]:
        """Every answer in the log."""
        found = (_ACCESS.search(line) for line in self.server.lines)
        return [AccessLine(match[1], int(match[2]), match[3]) for match in found if match]


@contextmanager
def running(name: str, folder: Path, environment: Mapping[str, str]) -> Generator[Subject]:
    """A server that is ready, and that ends well when the block does, if not before."""
    with ServerProcess(environment={"TMPDIR": str(folder), **ONE_THREAD, **environment}) as server:
        yield Subject(name, server, server.until_ready(), folder)
    assert server.wait() == 0, server.log
    assert left_in(folder) == []


def left_in(folder: Path) -> list[Path]:
    """Temporary files of ours."""
    return [path for path in folder.iterdir() if not path.match(_TORCHS_OWN)]


@asynccontextmanager
async def connections() -> AsyncGenerator[aiohttp.ClientSession]:
    """None of them is kept, so that a server's descriptors are its own."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:
        yield http


@dataclass(slots=True)
class Upload:
    """A body in two halves; the second one is sent when ``complete`` is set."""

    body: bytes
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    sent: asyncio.Event = field(default_factory=asyncio.Event)

    async def halves(self) -> AsyncIterator[bytes]:
        middle = len(self.body) // 2
        yield self.body[:middle]
        self.begun.set()
        await self.complete.wait()
        yield self.body[middle:]
        self.sent.set()


def delays(**seconds: float) -> dict[str, str]:
    """Settings that slow stages down."""
    return {"OPSIN_INJECT_DELAY_S": json.dumps(seconds)}


def slow_decode(step_s: float) -> dict[str, str]:
    """Settings under which every token takes so long."""
    return {"OPSIN_INJECT_STEP_DELAY_S": str(step_s)}


def body_of(conversation: Conversation, **fields: Any) -> bytes:
    return json.dumps({"messages": to_openai(conversation), "temperature": 0, **fields}).encode()


def check_right(reply: Reply, conversation: Conversation) -> None:
    assert (reply.status, reply.code, reply.text.strip()) == (200, None, conversation.turns[0].answer), reply


def check_begins_right(reply: Reply, conversation: Conversation) -> None:
    """A stream that goes on behind its answer, because its end is ignored: what follows is noise."""
    assert (reply.status, reply.code, reply.deltas[0].strip()) == (200, None, conversation.turns[0].answer), reply
    assert len(reply.deltas) > 1


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110 - neither processes nor gauges have events
            await asyncio.sleep(0.02)
