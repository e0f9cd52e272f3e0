"""Every cell of the fault matrix on the real server with the demo model: the answer, and nothing left behind.

A delay holds a request in its phase. A cell waits until its request is there, breaks something, and looks at the
answer, the log, the next request, and at all that the server holds: processes, descriptors, files, gauges. An engine
may die twice in five minutes, so no server loses its engine more often: it serves the cells of two phases at most.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import psutil
import pytest
from PIL import Image

from opsin.core.stages import Stage
from opsin.demo.tasks import Conversation
from opsin.gateway.deadline import HEADER as DEADLINE_HEADER
from opsin.testing.chat_client import Reply
from tests.corpus.bodies import image_body
from tests.corpus.pictures import data_url, encoded
from tests.e2e.faults import MATRIX, Answer, Fault, Gone, Impossible, Phase, Refusal, Right
from tests.e2e.scraping import scrape
from tests.e2e.subjects import (
    PATIENCE_S,
    Holdings,
    Subject,
    Upload,
    body_of,
    check_begins_right,
    check_right,
    connections,
    delays,
    running,
    slow_decode,
    until,
)

HOLD_S = 2.0
"""Added to the phase in which a request is to be met."""
HOLD_TOKEN_S = 0.4
"""The same in decode, where it is added to every token."""
DEADLINE_S, DEADLINE_LATE_S = 0.8, 1.6
IN_ENGINE = (Phase.VISION_ENCODE, Phase.PREFILL, Phase.DECODE)
SHORT_OF_MEMORY = "short of memory"

SERVERS: dict[str, dict[str, str]] = {
    "slow to load": delays(media_load=HOLD_S),
    "slow to render": delays(preprocess=HOLD_S),
    "slow to encode": delays(vision_encode=HOLD_S),
    "slow to prefill": delays(prefill=HOLD_S),
    "slow to decode, one at a time": {**slow_decode(HOLD_TOKEN_S), "OPSIN_LOCAL__MAX_NUM_SEQS": "1"},
    SHORT_OF_MEMORY: {
        "OPSIN_INJECT_OUT_OF_MEMORY": json.dumps({"vision_encode": 1, "prefill": 1, "decode": 1}),
        "OPSIN_LOCAL__MAX_NUM_ENCODER_TOKENS": "1",  # tile by tile: a batch that fails is tried again so
        "OPSIN_MEDIA__WORKER_MEMORY_BYTES": str(40 * 2**20),
    },
}
"""What is injected into each server."""
SERVER_OF = {
    Phase.UPLOAD: "slow to load",
    Phase.MEDIA_LOAD: "slow to load",
    Phase.PREPROCESS: "slow to render",
    Phase.QUEUE: "slow to decode, one at a time",  # a request waits for one that decodes
    Phase.VISION_ENCODE: "slow to encode",
    Phase.PREFILL: "slow to prefill",
    Phase.DECODE: "slow to decode, one at a time",
}
AT_REST = (
    "opsin_num_requests_running",
    "opsin_num_requests_waiting",
    "vlm_active_image_count",
    "vlm_kv_cache_image_tokens_ratio",
)
CELLS = [(Fault.CLIENT_GONE, True), *((fault, False) for fault in Fault if fault is not Fault.OUT_OF_MEMORY)]
"""A fault, and whether the answer is to be streamed. The last column of the matrix has a test of its own."""


@pytest.fixture(scope="module")
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    """The server that the parameter names."""
    with running(request.param, tmp_path_factory.mktemp("temporary"), SERVERS[request.param]) as subject:
        yield subject


@pytest.mark.parametrize(("fault", "stream"), CELLS)
@pytest.mark.parametrize(("phase", "subject"), SERVER_OF.items(), indirect=["subject"], scope="module")
async def test_a_cell(phase: Phase, subject: Subject, fault: Fault, stream: bool) -> None:
    asked = ask(phase, subject, fault, stream=stream)
    async with connections() as http:
        if subject.num_sent == 0:
            await subject.answers_right(http)
        before, num_gone = subject.holdings(), count_gone(subject)
        async with occupied(phase, subject, http) as others:
            request = await met(phase, subject, http, asked)
            await break_it(phase, fault, subject, http, request)
            if fault is Fault.ENGINE_KILLED and others:
                await asyncio.wait(others, timeout=PATIENCE_S)
        asked.upload.complete.set()
        await asyncio.wait({request}, timeout=PATIENCE_S)
        await settle(subject, http, before)
        check(phase, MATRIX[phase][fault], request, asked.conversation, subject)
        assert count_gone(subject) - num_gone == sum(task.cancelled() for task in (request, *others))


@pytest.mark.parametrize("subject", [SHORT_OF_MEMORY], indirect=True)
async def test_memory_is_short_once_in_each_phase_that_needs_some(subject: Subject) -> None:
    """The first encode, the first prefill and the first decode step fail, each with a request of its own."""
    replies: dict[Phase, Reply] = {}
    async with connections() as http:
        before = subject.holdings()
        for stage in (Stage.VISION_ENCODE, Stage.PREFILL, Stage.DECODE):
            reply = await subject.send(http, body_of(subject.question(), stream=True))
            assert reply.in_band is (stage is Stage.DECODE)
            replies[Phase(stage)] = reply
        replies[Phase.PREPROCESS] = await subject.send(http, large_picture())
        await settle(subject, http, before)
        assert (await scrape(subject.url))["opsin_oom_total"] == 3
    for phase, reply in replies.items():
        answer = MATRIX[phase][Fault.OUT_OF_MEMORY]
        assert isinstance(answer, Refusal)
        check_refused(answer, reply, subject)


# Asking


@dataclass(frozen=True, slots=True)
class Asked:
    """The request of a cell."""

    conversation: Conversation
    upload: Upload
    headers: dict[str, str]


def ask(phase: Phase, subject: Subject, fault: Fault, *, stream: bool) -> Asked:
    conversation = subject.question()
    if phase is Phase.PREPROCESS and fault is Fault.WORKER_KILLED:
        body = large_picture()
    elif phase is Phase.DECODE:
        # Long enough to be met there; and only there an error comes as an event.
        stream = stream or fault is not Fault.CLIENT_GONE
        body = body_of(conversation, stream=stream, ignore_eos=True, max_tokens=6)
    else:
        body = body_of(conversation, stream=stream)
    deadline_s = DEADLINE_LATE_S if phase in IN_ENGINE else DEADLINE_S
    return Asked(conversation, Upload(body), {DEADLINE_HEADER: str(deadline_s)} if fault is Fault.DEADLINE else {})


def large_picture() -> bytes:
    """A request whose picture takes a render worker half a second of its CPU, and 75 MB."""
    grey = Image.radial_gradient("L").resize((5000, 5000))
    return image_body(data_url(encoded(Image.merge("RGB", (grey, grey, grey)), "png", compress_level=1)))


# Waiting


async def met(phase: Phase, subject: Subject, http: aiohttp.ClientSession, asked: Asked) -> asyncio.Task[Reply]:
    """The request, once it is in its phase."""
    before = await scrape(subject.url)
    request = asyncio.create_task(subject.send(http, asked.upload.halves(), asked.headers))
    await asked.upload.begun.wait()
    if phase is not Phase.UPLOAD:
        asked.upload.complete.set()
        await asked.upload.sent.wait()
    await subject.round_trip(http)

    async def has_come() -> bool:
        return request.done() or has_reached(phase, await scrape(subject.url), before)

    await until(has_come)
    assert not request.done(), request.result()
    return request


def has_reached(phase: Phase, now: dict[str, float], before: dict[str, float]) -> bool:
    """What the gauges say of the one request in progress, or of the second one when it is to wait."""
    runs = now["opsin_num_requests_running"] == 1
    cache = "opsin_memory_bytes[feature_cache]"
    match phase:
        case Phase.UPLOAD | Phase.MEDIA_LOAD:
            return True
        case Phase.PREPROCESS:
            return now["vlm_active_image_count"] == 1
        case Phase.QUEUE:
            return now["opsin_num_requests_waiting"] == 1
        case Phase.VISION_ENCODE:
            return runs
        case Phase.PREFILL:
            return runs and now[cache] > before[cache]
        case Phase.DECODE:
            return now["vlm_kv_cache_image_tokens_ratio"] > 0


async def settle(subject: Subject, http: aiohttp.ClientSession, before: Holdings) -> None:
    """The engine is back, the next requests are answered right, all is as it was, and every answer is in the log."""
    await until(lambda: subject.is_ready(http))

    async def is_as_before() -> bool:
        await subject.answers_right(http)  # replaces a render worker that died while it was idle
        return await soon(lambda: is_at_rest(subject, before))

    await until(is_as_before)
    ids = [line.request_id for line in subject.access_lines()]
    assert len(set(ids)) == len(ids) == subject.num_sent


async def is_at_rest(subject: Subject, before: Holdings) -> bool:
    gauges = await scrape(subject.url)
    answered = len(subject.access_lines()) == subject.num_sent
    return answered and not any(gauges[name] for name in AT_REST) and subject.holdings() == before


async def soon(condition: Callable[[], Awaitable[bool]]) -> bool:
    """Within a second or so: a connection that was closed takes the server a moment."""
    for _ in range(50):
        if await condition():
            return True
        await asyncio.sleep(0.02)
    return False


# Breaking


@asynccontextmanager
async def occupied(
    phase: Phase, subject: Subject, http: aiohttp.ClientSession
) -> AsyncGenerator[set[asyncio.Task[Reply]]]:
    """While a request is to wait, another one keeps the engine busy; its client leaves at the end of the block."""
    if phase is not Phase.QUEUE:
        yield set()
        return
    endless = body_of(subject.question(), max_tokens=4000, ignore_eos=True)
    runner = asyncio.create_task(subject.send(http, endless))
    try:
        await until(lambda: runs(subject))
        yield {runner}
    finally:
        runner.cancel()
        await asyncio.wait({runner})


async def runs(subject: Subject) -> bool:
    return (await scrape(subject.url))["opsin_num_requests_running"] == 1


async def break_it(
    phase: Phase, fault: Fault, subject: Subject, http: aiohttp.ClientSession, request: asyncio.Task[Reply]
) -> None:
    async def is_down() -> bool:
        return not await subject.is_ready(http)

    match fault:
        case Fault.CLIENT_GONE:
            request.cancel()
        case Fault.WORKER_KILLED if phase is Phase.PREPROCESS:
            await kill_the_busy_renderer(subject)
        case Fault.WORKER_KILLED:
            renderers = subject.server.renderers()
            for renderer in renderers:
                renderer.kill()
            # A process that has not died yet would still be given the picture.
            await asyncio.to_thread(psutil.wait_procs, renderers, PATIENCE_S)
        case Fault.ENGINE_KILLED:
            (engine,) = subject.server.engines()
            engine.kill()
            await until(is_down)
        case Fault.DEADLINE:
            await asyncio.wait({request}, timeout=PATIENCE_S)
        case Fault.OUT_OF_MEMORY:
            raise AssertionError("has a test of its own")


async def kill_the_busy_renderer(subject: Subject) -> None:
    """As soon as one has worked for some hundredths of a second."""
    before = {renderer: cpu_s(renderer) for renderer in subject.server.renderers()}

    def busy() -> list[psutil.Process]:
        return [renderer for renderer, seconds in before.items() if cpu_s(renderer) >= seconds + 0.03]

    async with asyncio.timeout(PATIENCE_S):
        while not (found := busy()):  # noqa: ASYNC110 - the kernel has no event for it
            await asyncio.sleep(0.005)
    for renderer in found:
        renderer.kill()


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


# Checking


def count_gone(subject: Subject) -> int:
    return sum(line.status == Gone().status for line in subject.access_lines())


def check(
    phase: Phase, answer: Answer, request: asyncio.Task[Reply], conversation: Conversation, subject: Subject
) -> None:
    match answer:
        case Gone():
            assert request.cancelled()
        case Right() if phase is Phase.DECODE:
            check_begins_right(request.result(), conversation)
        case Right():
            check_right(request.result(), conversation)
        case Refusal():
            check_refused(answer, request.result(), subject)
        case Impossible():
            raise AssertionError("has no cell")


def check_refused(refusal: Refusal, reply: Reply, subject: Subject) -> None:
    """In the answer and in its one line of the log."""
    assert (reply.status, reply.code) == (200 if reply.in_band else refusal.status, refusal.code), reply
    (line,) = [line for line in subject.access_lines() if line.request_id == reply.request_id]
    assert (line.status, line.code) == (refusal.status, refusal.code)
