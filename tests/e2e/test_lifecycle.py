"""How the real server starts, drains, is killed, and gives up: never a hang, and nothing left behind."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import psutil
import pytest

from opsin.testing.chat_client import Reply
from opsin.testing.server_process import ServerProcess
from tests.conftest import ONE_THREAD
from tests.e2e.scraping import scrape
from tests.e2e.subjects import (
    Subject,
    Upload,
    body_of,
    check_begins_right,
    connections,
    left_in,
    running,
    slow_decode,
    until,
)

SLOW_DECODE = slow_decode(0.3)
ENGINE_LEAVES_S = 10.0
"""What the engine process may take to leave, with room for a busy machine; it is killed after 5 s."""


def family(server: ServerProcess) -> list[psutil.Process]:
    """The processes that a server has started."""
    return server.gateway().children(recursive=True)


def check_gone(processes: list[psutil.Process], within_s: float = ENGINE_LEAVES_S) -> None:
    """Gone, or a zombie that nobody reaps, where PID 1 does not."""
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


async def until_decoding(subject: Subject) -> None:
    async def decodes() -> bool:
        return (await scrape(subject.url))["vlm_kv_cache_image_tokens_ratio"] > 0

    await until(decodes)


def endless(subject: Subject, *, stream: bool) -> bytes:
    return body_of(subject.question(), stream=stream, max_tokens=4000, ignore_eos=True)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


# Draining


async def test_sighup_reloads_and_sigterm_lets_a_stream_finish(tmp_path: Path) -> None:
    with running("drain", tmp_path, {**SLOW_DECODE, "OPSIN_GATEWAY__HEARTBEAT_S": "0.1"}) as subject:
        children = family(subject.server)

        async def reloaded() -> bool:
            return "event=reloaded" in subject.server.log

        async with connections() as http:
            conversation = subject.question()
            body = body_of(conversation, stream=True, ignore_eos=True, max_tokens=8)
            request = asyncio.create_task(subject.send(http, body))
            await until_decoding(subject)
            subject.server.signal(signal.SIGHUP)
            await until(reloaded)
            subject.server.signal(signal.SIGTERM)
            reply = await request
            check_begins_right(reply, conversation)
            assert reply.comments > 0
            with pytest.raises(aiohttp.ClientConnectionError):
                await subject.answers_right(http)
        assert subject.server.wait() == 0
        assert told_at_the_end(subject.server) == [
            "stopping: up to 30 s for the requests in progress (1); again to stop now",
            "stopped",
        ]
        check_gone(children)


def told_at_the_end(server: ServerProcess) -> list[str]:
    """Of its log what is about the end."""
    return [line.partition("opsin.cli.serve ")[2] for line in server.log.splitlines() if " stopp" in line]


def test_an_idle_server_says_that_it_waits_for_nobody() -> None:
    with ServerProcess("--engine", "fake") as server:
        server.until_ready()
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    assert told_at_the_end(server) == ["stopping: no request is in progress", "stopped"]


async def test_what_is_not_finished_when_the_drain_ends_is_answered(tmp_path: Path) -> None:
    """A stream in its middle, a request that waits, and one that has not come completely."""
    with running("short drain", tmp_path, {**SLOW_DECODE, "OPSIN_GATEWAY__DRAIN_TIMEOUT_S": "1.5"}) as subject:
        replies = await stopped_in_the_middle(subject, lambda: subject.server.signal(signal.SIGTERM))
    check_shut_down(subject, replies)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_the_drain(tmp_path: Path, number: signal.Signals) -> None:
    def stop_twice() -> None:
        subject.server.signal(number)
        time.sleep(0.2)  # two of one kind that wait for a process are one
        subject.server.signal(number)

    with running("long drain", tmp_path, {**SLOW_DECODE, "OPSIN_GATEWAY__DRAIN_TIMEOUT_S": "600"}) as subject:
        replies = await stopped_in_the_middle(subject, stop_twice)
    check_shut_down(subject, replies)


async def stopped_in_the_middle(subject: Subject, stop: Callable[[], None]) -> list[Reply]:
    """Answers of a stream, of a request that waits, and of one whose body never ends."""
    children = family(subject.server)
    upload = Upload(endless(subject, stream=False))
    async with connections() as http:
        stream = asyncio.create_task(subject.send(http, endless(subject, stream=True)))
        await until_decoding(subject)
        waiting = asyncio.create_task(subject.send(http, endless(subject, stream=False)))
        uploading = asyncio.create_task(subject.send(http, upload.halves()))
        await upload.begun.wait()
        await subject.round_trip(http)
        stop()
        replies = list(await asyncio.wait_for(asyncio.gather(stream, waiting, uploading), 30))
    assert subject.server.wait(ENGINE_LEAVES_S) == 0
    check_gone(children)
    return replies


def check_shut_down(subject: Subject, replies: list[Reply]) -> None:
    assert [reply.code for reply in replies] == ["shutting_down"] * 3
    assert [(reply.status, reply.in_band) for reply in replies] == [(200, True), (503, False), (503, False)]
    assert "stopping: the requests still in progress (3) are ended" in subject.server.log
    told = {line.request_id: (line.status, line.code) for line in subject.access_lines()}
    assert told == {reply.request_id: (503, "shutting_down") for reply in replies}


# Being killed


async def test_sigkill_of_the_gateway_leaves_nothing(tmp_path: Path) -> None:
    """With a request in decode, and another one in a render worker's place, none of which notices by itself."""
    with ServerProcess(environment={"TMPDIR": str(tmp_path), **ONE_THREAD, **SLOW_DECODE}) as server:
        subject = Subject("killed", server, server.until_ready(), tmp_path)
        children = family(server)
        assert len(children) == 1 + 2
        async with connections() as http:
            request = asyncio.create_task(subject.send(http, endless(subject, stream=True)))
            await until_decoding(subject)
            server.signal(signal.SIGKILL)
            assert server.wait() == -signal.SIGKILL
            check_gone(children)
            with pytest.raises(aiohttp.ClientError):
                await request
    assert left_in(tmp_path) == []


async def test_an_engine_that_dies_three_times_stays_down(tmp_path: Path) -> None:
    """Once at work and twice while it loads again. What else the gateway does goes on."""
    with running("crash loop", tmp_path, {}) as subject:
        async with connections() as http:
            await subject.answers_right(http)
            for _ in range(3):
                await until(lambda: has_engine(subject))
                await kill_engine(subject)
            await until_reason(subject, http, "the engine process died 3 times within 5 minutes and stays down")
            for stream in (False, True):
                reply = await subject.send(http, body_of(subject.question(), stream=stream))
                assert (reply.status, reply.code) == (503, "engine_unavailable")
                assert "stays down" in reply.message
            await subject.round_trip(http)
            assert subject.server.engines() == []
            assert subject.server.zombies() == []


async def has_engine(subject: Subject) -> bool:
    return bool(subject.server.engines())


async def kill_engine(subject: Subject) -> None:
    (engine,) = subject.server.engines()
    engine.kill()

    async def is_gone() -> bool:
        return engine not in subject.server.engines()

    await until(is_gone)


async def until_reason(subject: Subject, http: aiohttp.ClientSession, reason: str) -> None:
    async def says_so() -> bool:
        async with http.get(f"{subject.url}/ready") as response:
            return response.status == 503 and (await response.json())["reason"] == reason

    await until(says_so)


# Starting


async def test_ready_tells_what_it_waits_for_while_everything_else_answers(tmp_path: Path) -> None:
    port = free_port()
    reasons: set[str] = set()
    with ServerProcess("--port", str(port), environment={"TMPDIR": str(tmp_path), **ONE_THREAD}) as server:
        subject = Subject("loading", server, f"http://127.0.0.1:{port}", tmp_path)
        async with connections() as http:
            await until(lambda: listens(subject, http))
            reply = await subject.send(http, body_of(subject.question()))
            assert (reply.status, reply.code) == (503, "engine_unavailable")

            async def is_ready() -> bool:
                async with http.get(f"{subject.url}/ready") as response:
                    reasons.add((await response.json()).get("reason", ""))
                    return response.status == 200

            await until(is_ready)
            assert server.until_ready() == subject.url
            await subject.answers_right(http)
    assert server.wait() == 0
    assert "the model is loading: importing torch and transformers" in reasons
    assert reasons - {""} == {reason for reason in reasons if reason.startswith(("the model is", "the engine has not"))}


async def listens(subject: Subject, http: aiohttp.ClientSession) -> bool:
    try:
        await subject.round_trip(http)
    except aiohttp.ClientConnectionError:
        return False
    return True


async def test_sigterm_while_loading_ends_at_once(tmp_path: Path) -> None:
    with ServerProcess(environment={"TMPDIR": str(tmp_path), **ONE_THREAD}) as server:
        await until(has_started_an_engine(server))
        children = family(server)
        server.signal(signal.SIGTERM)
        assert server.wait(ENGINE_LEAVES_S) == 0
        check_gone(children)
    assert left_in(tmp_path) == []


async def test_an_engine_that_dies_while_loading_ends_the_start(tmp_path: Path) -> None:
    with ServerProcess(environment={"TMPDIR": str(tmp_path), **ONE_THREAD}) as server:
        await until(has_started_an_engine(server))
        children = family(server)
        for engine in server.engines():
            engine.kill()
        assert server.wait(ENGINE_LEAVES_S) == 1
        check_gone(children)
    assert "opsin: the engine process died while loading" in server.log
    assert left_in(tmp_path) == []


def has_started_an_engine(server: ServerProcess) -> Callable[[], Awaitable[bool]]:
    async def asked() -> bool:
        return bool(server.engines())

    return asked
