"""Several scripted upstreams as one engine: who is asked, what moves on, who is left alone; and nothing runs twice."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from opsin.core.conversation import Detail, MediaRef, Message, TextPart
from opsin.core.errors import EngineError, OpsinError, Overloaded
from opsin.engine.api import Delta, GenerationRequest, PurgeOutcome, ReplicaState, ReplicaStats
from opsin.engine.replicas.affinity import affinity
from opsin.engine.replicas.config import RoutingConfig
from opsin.engine.replicas.engine import ReplicatedEngine
from opsin.engine.replicas.routing import ranked
from opsin.engine.upstream.config import UpstreamConfig
from opsin.engine.upstream.engine import UpstreamEngine
from opsin.testing.script import End, Failure, Script
from opsin.testing.scripted_upstream import ScriptedUpstream, serve
from tests.integration.gateways import gateway
from tests.integration.test_upstream_engine import a_request, answer, failure

FULL = Script(status=429, failure=Failure(message="full", type="rate_limit", code=429))
LOADING = Script(status=503, failure=Failure(message="Loading model", type="unavailable_error", code=503))
BROKEN = Script(status=500, failure=Failure(message="broken", type="internal", code=500))
NOT_READY = Script(
    status=503, failure=Failure(message="the model is loading", type="engine_error", code="engine_unavailable")
)
DIED = Script(status=503, failure=Failure(message="the engine died", type="engine_error", code="engine_died"))
LONG = Script(text="one two three four five six seven eight", itl_s=0.05)
DOWN = "http://127.0.0.1:9/v1"  # the discard port: nobody listens


@dataclass(frozen=True, slots=True)
class Replicas:
    """Servers by URL, the engine over them, and what ends a server at once."""

    servers: dict[str, ScriptedUpstream]
    engine: ReplicatedEngine
    kill: Callable[[str], Awaitable[None]]

    @property
    def urls(self) -> list[str]:
        return list(self.servers)

    def counts(self) -> list[int]:
        return [len(server.received) for server in self.servers.values()]

    async def states(self) -> list[ReplicaState]:
        return [one.state for one in await self.replicas()]

    async def replicas(self) -> tuple[ReplicaStats, ...]:
        return (await self.engine.stats()).replicas

    def belonging_to(self, url: str, request_id: str = "r1") -> GenerationRequest:
        requests = (a_request(request_id, (Message("user", (TextPart(f"{n}"),)),)) for n in itertools.count())
        return next(one for one in requests if ranked(affinity(one), self.servers)[0] == url)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def running(
    *upstreams: ScriptedUpstream,
    start: bool = True,
    further: tuple[str, ...] = (),
    clock: Callable[[], float] = time.monotonic,
    **routing: Any,
) -> AsyncGenerator[Replicas]:
    async with AsyncExitStack() as whole:
        stacks, servers = dict[str, AsyncExitStack](), dict[str, ScriptedUpstream]()
        for upstream in upstreams or (ScriptedUpstream(), ScriptedUpstream()):
            stack = await whole.enter_async_context(AsyncExitStack())
            url = f"{await stack.enter_async_context(serve(upstream, grace_s=0))}/v1"
            stacks[url], servers[url] = stack, upstream
        engine = ReplicatedEngine(_opened, (*servers, *further), RoutingConfig(**routing), clock=clock)
        whole.push_async_callback(engine.close)
        replicas = Replicas(servers, engine, lambda url: stacks[url].aclose())
        if start:
            await engine.start()
            await until(lambda: _all_but(replicas, len(further)))
        yield replicas


def _opened(url: str) -> UpstreamEngine:
    return UpstreamEngine(UpstreamConfig(url=url, health_interval_s=0.05, ready_timeout_s=0 if url == DOWN else 5))


async def _all_but(replicas: Replicas, count: int) -> bool:
    return (await replicas.states()).count(ReplicaState.DOWN) == count


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.01)


async def test_a_picture_and_a_conversation_stay_where_they_were() -> None:
    async with running() as replicas:
        expected = Counter[str]()
        for number in range(12):
            request = a_request(str(number), (Message("user", (TextPart(f"about {number % 5}"),)),))
            if number % 2:
                ref = MediaRef("data:", Detail.AUTO, "p")
                request = a_request(str(number), (Message("user", (ref,)),), (f"picture {number % 4}".encode(),))
            expected[ranked(affinity(request), replicas.urls)[0]] += 1
            await answer(replicas.engine, request)
        assert replicas.counts() == [expected[url] for url in replicas.urls]


async def test_what_overflows_goes_to_the_others() -> None:
    async with running(*(ScriptedUpstream(script=LONG) for _ in range(3))) as replicas:
        request = replicas.belonging_to(replicas.urls[0])
        async with asyncio.TaskGroup() as tasks:
            for number in range(12):
                tasks.create_task(answer(replicas.engine, replace(request, id=str(number))))
        assert replicas.counts()[0] == 5  # 1.25 times the mean of four
        assert sum(replicas.counts()) == 12


@pytest.mark.parametrize("refusal", [FULL, LOADING, NOT_READY])
async def test_a_refusal_before_any_work_moves_on(refusal: Script) -> None:
    async with running() as replicas:
        first, _ = replicas.urls
        replicas.servers[first].queue(refusal)
        text, _ = await answer(replicas.engine, replicas.belonging_to(first))
        assert text == Script().text
        assert replicas.counts() == [1, 1]
        assert [one.retries for one in await replicas.replicas()] == [1, 0]


@pytest.mark.parametrize(
    "fault",
    [BROKEN, DIED, Script(end=End.CUT), Script(end=End.RESET, end_after_chunks=0), Script(text="", end=End.CUT)],
)
async def test_what_may_have_run_is_never_sent_again(fault: Script) -> None:
    async with running() as replicas:
        first, _ = replicas.urls
        replicas.servers[first].queue(fault)
        error, _ = await failure(replicas.engine, replicas.belonging_to(first))
        assert isinstance(error, EngineError)
        assert replicas.counts() == [1, 0]


async def test_all_that_are_full_say_so_once_each() -> None:
    async with running(*(ScriptedUpstream(script=FULL) for _ in range(4)), max_retries=2) as replicas:
        error, _ = await failure(replicas.engine, replicas.belonging_to(replicas.urls[0]))
        assert isinstance(error, Overloaded)
        assert sorted(replicas.counts()) == [0, 1, 1, 1]


async def test_failures_in_a_row_leave_a_replica_alone_until_a_trial_is_answered() -> None:
    clock = Clock()
    async with running(clock=clock, eject_after=2, eject_s=5) as replicas:
        first, _ = replicas.urls
        request = replicas.belonging_to(first)
        replicas.servers[first].queue(BROKEN, BROKEN)
        for _ in range(2):
            await failure(replicas.engine, request)
        assert await replicas.states() == [ReplicaState.EJECTED, ReplicaState.READY]
        await answer(replicas.engine, request)
        assert replicas.counts() == [2, 1]
        clock.now += 5
        await answer(replicas.engine, request)
        assert replicas.counts() == [3, 1]
        assert await replicas.states() == [ReplicaState.READY, ReplicaState.READY]
        assert [one.ejections for one in await replicas.replicas()] == [1, 0]


async def test_ejection_alone_refuses_nobody() -> None:
    async with running(eject_after=1, eject_s=60) as replicas:
        for url in replicas.urls:
            replicas.servers[url].queue(BROKEN)
            await failure(replicas.engine, replicas.belonging_to(url))
        assert await replicas.states() == [ReplicaState.EJECTED] * 2
        assert replicas.engine.unready_reason() is None
        await answer(replicas.engine, replicas.belonging_to(replicas.urls[0]))
        assert replicas.counts() == [2, 1]


async def test_one_that_is_there_is_enough_and_the_others_join() -> None:
    async with running(further=(DOWN,)) as replicas:
        assert await replicas.states() == [ReplicaState.READY, ReplicaState.READY, ReplicaState.DOWN]
        assert replicas.engine.unready_reason() is None
        for url in replicas.urls:
            await replicas.kill(url)
        for number in range(2):
            await failure(replicas.engine, replace(replicas.belonging_to(replicas.urls[0]), id=str(number)))
        assert "none of 3 replicas is ready" in (replicas.engine.unready_reason() or "")
        error, _ = await failure(replicas.engine, a_request())
        assert error.retry_after_s


async def test_nobody_there_is_the_first_ones_failure() -> None:
    engine = ReplicatedEngine(_opened, (DOWN,), RoutingConfig())
    with pytest.raises(EngineError, match="was not ready within 0 s: the upstream cannot be reached"):
        await engine.start()
    await engine.close()


async def test_an_opsin_that_loads_joins_when_it_is_ready() -> None:
    """It lists its models from the beginning, and /ready tells whether they can be asked."""
    async with gateway() as there, gateway(started=False) as loading:
        urls = [f"{one.url}/v1" for one in (there, loading)]
        engine = ReplicatedEngine(_opened, urls, RoutingConfig())

        async def states() -> list[ReplicaState]:
            return [one.state for one in (await engine.stats()).replicas]

        async def is_ready() -> bool:
            return await states() == [ReplicaState.READY] * 2

        await engine.start()
        for number in range(8):
            text, _ = await answer(engine, a_request(str(number), (Message("user", (TextPart(f"{number}"),)),)))
            assert text
        assert await states() == [ReplicaState.READY, ReplicaState.DOWN]
        await loading.application.models[0].start()
        await until(is_ready)
        await loading.application.models[0].served.engine.close()

        async def is_down() -> bool:
            return await states() == [ReplicaState.READY, ReplicaState.DOWN]

        await until(is_down)
        await engine.close()


async def test_a_bug_in_an_engine_ends_the_start() -> None:
    class Broken(UpstreamEngine):
        async def start(self) -> None:
            raise ZeroDivisionError

    engine = ReplicatedEngine(lambda url: Broken(UpstreamConfig(url=url)), (DOWN,), RoutingConfig())
    with pytest.raises(ZeroDivisionError):
        await engine.start()
    await engine.close()


async def test_another_model_does_not_join(caplog: pytest.LogCaptureFixture) -> None:
    strange = ScriptedUpstream(model="another")

    async def refused() -> bool:
        return "it serves another with 4096 tokens, and the other replicas scripted with 4096" in caplog.text

    async with running(ScriptedUpstream(), start=False) as replicas, serve(strange) as url:
        await replicas.engine.start()
        replicas.engine.change(_opened, (*replicas.urls, f"{url}/v1"), ())
        with caplog.at_level(logging.WARNING):
            await until(refused)
        assert await replicas.states() == [ReplicaState.READY, ReplicaState.DOWN]


async def test_a_replica_of_another_kind_does_not_join(caplog: pytest.LogCaptureFixture) -> None:
    """What is sent to all alike follows the first one."""

    async def refused() -> bool:
        return "it takes pictures of unknown formats (which --upstream-kind tells), and the other" in caplog.text

    async with running(ScriptedUpstream(owned_by="vllm"), start=False) as replicas, serve(ScriptedUpstream()) as url:
        await replicas.engine.start()
        replicas.engine.change(_opened, (*replicas.urls, f"{url}/v1"), ())
        with caplog.at_level(logging.WARNING):
            await until(refused)


async def test_the_log_tells_each_change_of_state_once(caplog: pytest.LogCaptureFixture) -> None:
    def told() -> list[tuple[str, str]]:
        lines = [(record.levelname, record.getMessage()) for record in caplog.records]
        return [(level, line.partition("state=")[2].split()[0]) for level, line in lines if f"replica={first} " in line]

    async def has(count: int) -> bool:
        return len(told()) >= count

    with caplog.at_level(logging.INFO):
        async with running() as replicas:
            first, _ = replicas.urls
            await replicas.kill(first)
            await until(lambda: has(2))
            port = int(first.removesuffix("/v1").rpartition(":")[2])
            async with serve(replicas.servers[first], port=port):
                await until(lambda: has(3))
                await answer(replicas.engine, replicas.belonging_to(first))
    assert told()[:3] == [("INFO", "ready"), ("WARNING", "down"), ("INFO", "ready")]


async def test_a_drain_ends_what_runs_and_begins_nothing() -> None:
    async with running(ScriptedUpstream(script=LONG), ScriptedUpstream()) as replicas:
        first, second = replicas.urls
        request = replicas.belonging_to(first)
        async with aclosing(replicas.engine.submit(request)) as events:
            await anext(events)
            replicas.engine.change(_opened, replicas.urls, [first])
            assert await replicas.states() == [ReplicaState.DRAINING, ReplicaState.READY]
            await answer(replicas.engine, replace(request, id="r2"))
            replicas.engine.change(_opened, [second], ())
            assert len(await replicas.replicas()) == 2  # it is gone when its last request is
            text = "".join([event.text async for event in events if isinstance(event, Delta)])
        assert text.endswith("eight")
        assert replicas.counts() == [1, 1]

        async def gone() -> bool:
            return [one.name for one in await replicas.replicas()] == [second]

        await until(gone)
        replicas.engine.change(_opened, [second, first], ())
        await until(lambda: _all_but(replicas, 0))
        await answer(replicas.engine, replace(request, id="r3"))
        assert replicas.counts() == [2, 1]


async def test_one_that_leaves_serves_on_until_another_one_is_there() -> None:
    late = ScriptedUpstream()
    late.loading = True
    async with running(ScriptedUpstream()) as replicas, serve(late) as url:
        engine, request = replicas.engine, replicas.belonging_to(replicas.urls[0])
        engine.change(_opened, [f"{url}/v1"], ())
        await asyncio.sleep(0.2)
        await answer(engine, request)
        assert (replicas.counts(), len(late.received), engine.unready_reason()) == ([1], 0, None)
        late.loading = False

        async def gone() -> bool:
            return [one.name for one in await replicas.replicas()] == [f"{url}/v1"]

        await until(gone)
        await answer(engine, replace(request, id="r2"))
        assert (replicas.counts(), len(late.received)) == ([1], 1)


async def test_leases_purges_and_cancels_reach_everyone() -> None:
    endless = Script(end=End.HANG, end_after_chunks=1)
    async with running(ScriptedUpstream(script=endless), ScriptedUpstream(script=endless)) as replicas:
        reserved = await replicas.engine.reserve("r1", ["k"])
        assert (reserved.leased, reserved.missing) == (frozenset(), frozenset({"k"}))
        await replicas.engine.release("r1")
        assert (await replicas.engine.purge("s", None)).tiers == {"upstream": PurgeOutcome.UNREACHABLE}
        request = replicas.belonging_to(replicas.urls[1])
        async with aclosing(replicas.engine.submit(request)) as events:
            await anext(events)
            assert [one.requests for one in await replicas.replicas()] == [0, 1]
            await replicas.engine.cancel(request.id)
            with pytest.raises(OpsinError, match="cancelled"):
                [event async for event in events]
        assert [one.requests for one in await replicas.replicas()] == [0, 0]


async def test_the_log_names_the_replica_of_a_request_and_tells_when_none_is_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def has_lost() -> bool:
        return 'model=scripted state="not ready"' in caplog.text

    upstream = ScriptedUpstream()
    with caplog.at_level(logging.INFO):
        async with AsyncExitStack() as dying:
            url = await dying.enter_async_context(serve(upstream, grace_s=0))
            settings = {"url": url, "health_interval_s": 0.05}
            async with gateway(engine="upstream", upstream=settings, media={"render_workers": 1}) as served:
                upstream.queue(Script(), BROKEN)
                assert [status for status, _ in (await served.chat(), await served.chat())] == [200, 503]
                await dying.aclose()
                await until(has_lost)
    assert "model=scripted state=ready" in caplog.text
    requests = [line for line in caplog.text.splitlines() if "request_id=" in line and "status=" in line]
    assert [f"replica={url}/v1 " in line for line in requests] == [True, True]


NUM_REQUESTS = 32
WORDS = 8


async def test_one_killed_under_load_answers_everyone_once_or_refuses_by_type() -> None:
    """Every prompt is a nonce of its own that comes back word by word: nothing is lost, mixed up or run twice."""
    script = Script(echo=True, itl_s=0.02)
    first, second = ScriptedUpstream(script=script), ScriptedUpstream(script=script)
    async with AsyncExitStack() as dying, serve(second) as url:
        doomed = await dying.enter_async_context(serve(first, grace_s=0))
        async with gateway(
            engine="upstream", upstream={"url": [doomed, url], "health_interval_s": 0.05}, media={"render_workers": 1}
        ) as served:
            sending = [asyncio.create_task(_asked(served, number)) for number in range(NUM_REQUESTS)]
            await until_received(first)
            await dying.aclose()
            outcomes = await asyncio.gather(*sending)
            status, metrics = await _scraped(served)
            async with served.http.get(f"{served.url}/ready") as response:
                assert response.status == 200
    whole = [number for number, outcome in enumerate(outcomes) if outcome == _nonce(number)]
    refused = {outcome for number, outcome in enumerate(outcomes) if number not in whole}
    assert refused <= {"upstream_truncated", "upstream_unavailable"}, outcomes
    assert len(whole) >= NUM_REQUESTS // 2
    begun = Counter(json.loads(one.body)["messages"][0]["content"] for one in (*first.received, *second.received))
    assert begun.keys() <= {_nonce(number) for number in range(NUM_REQUESTS)}
    assert set(begun.values()) == {1}
    assert status == 200
    assert f'opsin_replica_state{{model="scripted",replica="{doomed}/v1",state="down"}} 1.0' in metrics
    assert f'opsin_replica_requests_running{{model="scripted",replica="{url}/v1"}} 0.0' in metrics


def _nonce(number: int) -> str:
    return " ".join(f"{number}.{word}" for word in range(WORDS))


async def _asked(served: Any, number: int) -> str:
    """The whole text, or the code of the error that came in its place or behind a part of it."""
    await asyncio.sleep(number * 0.01)
    body = {"messages": [{"role": "user", "content": _nonce(number)}], "stream": True}
    async with served.http.post(f"{served.url}/v1/chat/completions", json=body) as response:
        raw = (await response.read()).decode()
    if response.status != 200:
        return json.loads(raw)["error"]["code"]
    *events, last = [line.removeprefix("data: ") for line in raw.splitlines() if line.startswith("data: ")]
    if last != "[DONE]":
        return json.loads(last)["error"]["code"]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def _scraped(served: Any) -> tuple[int, str]:
    async with served.http.get(f"{served.url}/metrics") as response:
        return response.status, await response.text()


async def until_received(upstream: ScriptedUpstream) -> None:
    async def has_some() -> bool:
        return len(upstream.received) >= 8

    await until(has_some)
