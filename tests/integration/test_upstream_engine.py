"""The upstream engine against a scripted server over real sockets: every fault has one class and one code."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import socket
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import SecretStr

from opsin.core.conversation import Conversation, Detail, MediaRef, Message, TextPart
from opsin.core.errors import (
    ConfigError,
    ContextLengthExceeded,
    EngineError,
    EngineOutOfMemory,
    InvalidRequest,
    OpsinError,
    Overloaded,
    UpstreamMisconfigured,
)
from opsin.core.sse import MAX_EVENT_BYTES
from opsin.core.stages import Stage
from opsin.engine.api import (
    ChatPrompt,
    Delta,
    Engine,
    Finished,
    GenerationRequest,
    InputKind,
    Picture,
    PurgeOutcome,
    SamplingParams,
    StageSum,
    StreamEvent,
    Usage,
)
from opsin.engine.upstream.config import UpstreamConfig
from opsin.engine.upstream.engine import UpstreamEngine
from opsin.media.types import ImageFormat, ImageHeader, MediaBytes
from opsin.testing.picture_cache import PictureCache, picture_gone
from opsin.testing.script import MODES, End, Failure, Script, UsageShape
from opsin.testing.scripted_upstream import ScriptedUpstream, serve
from opsin.vision.plan import Size
from tests.tries import tried

SOON_S = 20.0
"""What takes no time takes some on a busy machine; what never happens takes more."""

PROMPT = (Message("user", (TextPart("What is it?"),)),)


def a_request(
    request_id: str = "r1", messages: tuple[Message, ...] = PROMPT, pictures: tuple[bytes, ...] = ()
) -> GenerationRequest:
    return GenerationRequest(
        id=request_id,
        scope="s",
        prompt=ChatPrompt(Conversation(messages)),
        pictures=tuple(a_picture(data) for data in pictures),
        sampling=SamplingParams(max_tokens=16),
        submitted_at=time.monotonic(),
    )


def a_picture(data: bytes) -> Picture:
    digest = hashlib.sha256(data).hexdigest()
    media = MediaBytes(data, digest, ImageHeader(ImageFormat.PNG, Size(2, 2), 1, 1), "messages.0.content.0")
    return Picture(key=digest, image_tokens=None, num_tiles=None, media=media)


@asynccontextmanager
async def running(
    upstream: ScriptedUpstream | None = None, **config: Any
) -> AsyncGenerator[tuple[UpstreamEngine, ScriptedUpstream], None]:
    upstream = upstream or ScriptedUpstream()
    async with serve(upstream) as url:
        engine = UpstreamEngine(UpstreamConfig(url=url, **config))
        await engine.start()
        try:
            yield engine, upstream
        finally:
            await engine.close()


async def answer(engine: Engine, request: GenerationRequest) -> tuple[str, list[StreamEvent]]:
    events = [event async for event in engine.submit(request)]
    return "".join(event.text for event in events if isinstance(event, Delta)), events


def end_of(events: list[StreamEvent]) -> Finished:
    (end,) = [event for event in events if isinstance(event, Finished)]
    assert events[-1] is end
    return end


async def failure(engine: Engine, request: GenerationRequest) -> tuple[OpsinError, str]:
    """The error that ends the stream, and the text before it."""
    text = ""
    with pytest.raises(OpsinError) as caught:
        async for event in engine.submit(request):
            assert isinstance(event, Delta)
            text += event.text
    return caught.value, text


async def test_a_whole_answer() -> None:
    async with running() as (engine, upstream):
        upstream.queue(Script(text="A red circle.", image_tokens=64, cached_tokens=3, prompt_tokens=80))
        text, events = await answer(engine, a_request())
        assert text == "A red circle."
        end = end_of(events)
        assert end.remote is not None
        assert end.remote.source == "auto"
        assert 0 < end.remote.rest_s < 60
        assert end == Finished("stop", Usage(80, 3, 64, 3), stages_s={}, remote=end.remote)
        assert engine.unready_reason() is None


async def test_what_it_tells_of_itself() -> None:
    async with running(ScriptedUpstream(max_model_len=2048)) as (engine, _):
        capabilities = engine.capabilities()
        assert capabilities.input is InputKind.MESSAGES
        assert capabilities.max_model_len == 2048
        assert capabilities.stages == frozenset()
        assert not capabilities.reports_cache
        assert not capabilities.reports_kv
        assert (await engine.reserve("r", ["a", "b"])).missing == {"a", "b"}
        assert (await engine.purge("s", None)).tiers == {"upstream": PurgeOutcome.UNREACHABLE}
        await engine.release("unknown")
        await engine.cancel("unknown")


@pytest.mark.parametrize(
    ("mode", "kind", "code", "text"),
    [
        ("in_band_error", EngineOutOfMemory, "engine_out_of_memory", "A red"),
        ("truncated", EngineError, "upstream_truncated", "A red"),
        ("reset", EngineError, "upstream_truncated", "A red"),
        ("empty", EngineError, "upstream_empty", ""),
        ("http_500", EngineOutOfMemory, "engine_out_of_memory", ""),
        ("http_400_context", ContextLengthExceeded, "context_length_exceeded", ""),
        ("http_429", Overloaded, "overloaded", ""),
    ],
)
async def test_every_fault_has_one_class_and_code(mode: str, kind: type[OpsinError], code: str, text: str) -> None:
    async with running(model=mode) as (engine, _):
        error, before = await failure(engine, a_request())
        assert (type(error), error.code) == (kind, code)
        assert before == text
        assert (await engine.stats()).running == 0
        assert engine.unready_reason() is None  # one failed request is no sign that the next will fail


async def test_a_fault_leaves_the_engine_whole() -> None:
    async with running() as (engine, upstream):
        faults = [script for mode, script in MODES.items() if mode not in ("ok", "slow", "hang")]
        upstream.queue(*(script for fault in faults for script in (fault, MODES["ok"])))
        for fault in faults:
            with_fault = [event async for event in _tolerant(engine)]
            text, _ = await answer(engine, a_request())
            assert text == MODES["ok"].text
            assert len(with_fault) <= len(fault.chunks) + 1


async def _tolerant(engine: UpstreamEngine) -> AsyncGenerator[StreamEvent, None]:
    try:
        async for event in engine.submit(a_request()):
            yield event
    except OpsinError:
        return


async def test_what_a_refusal_carries() -> None:
    async with running() as (engine, upstream):
        upstream.queue(MODES["http_429"], MODES["http_400_context"], MODES["http_500"])
        full, _ = await failure(engine, a_request())
        long, _ = await failure(engine, a_request())
        broken, _ = await failure(engine, a_request())
    assert full.retry_after_s == 7
    assert "maximum context length is 4096" in long.message
    assert broken.message == "the upstream failed: 500, out of memory"


async def test_an_error_event_that_blames_the_request() -> None:
    blame = Failure(message="stop has too many entries", type="BadRequestError", code=400)
    async with running() as (engine, upstream):
        upstream.queue(Script(end=End.ERROR, end_after_chunks=0, failure=blame))
        error, _ = await failure(engine, a_request())
    assert (type(error), error.message) == (InvalidRequest, "stop has too many entries")


@pytest.mark.parametrize("mode", ["no_usage", "role_only_first_chunk", "usage_chunk_late"])
async def test_odd_but_whole_answers(mode: str) -> None:
    async with running(model=mode) as (engine, _):
        text, events = await answer(engine, a_request())
        script = MODES[mode]
        assert text == script.text
        expected = Usage(100, len(script.tokens), None, None) if script.usage else Usage(None, None, None, None)
        assert end_of(events).usage == expected


async def test_a_role_only_chunk_is_no_delta() -> None:
    async with running() as (engine, upstream):
        upstream.queue(Script(role_chunk_s=0.0, ttft_s=0.2))
        start = time.monotonic()
        async for _ in engine.submit(a_request()):
            assert time.monotonic() - start >= 0.19
            break


@pytest.mark.parametrize("shape", list(UsageShape))
async def test_image_tokens_in_both_shapes(shape: UsageShape) -> None:
    async with running() as (engine, upstream):
        upstream.queue(Script(image_tokens=1088, prompt_tokens=1100, usage_shape=shape))
        _, events = await answer(engine, a_request())
        usage = end_of(events).usage
        assert 1088 in (usage.image_tokens, usage.placeholder_tokens)
        assert (usage.image_tokens is None) is (shape is UsageShape.MULTIMODAL_TOKENS)


async def test_tokens_of_a_chunk_by_running_usage() -> None:
    async with running() as (engine, upstream):
        upstream.queue(Script(text="a b c d e", tokens_per_chunk=2, running_usage=True))
        _, events = await answer(engine, a_request())
        assert [event.num_tokens for event in events if isinstance(event, Delta)] == [2, 2, 1]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("write_bytes", [1, 3, 7, None])
async def test_characters_split_over_writes(newline: Any, write_bytes: int | None) -> None:
    text = "빨간 원 🙂 and a\u2028line\u0085separator"
    async with running() as (engine, upstream):
        upstream.queue(Script(text=text, newline=newline, write_bytes=write_bytes))
        received, events = await answer(engine, a_request())
        assert received == text
        assert end_of(events).reason == "stop"


async def test_an_event_too_large_to_be_a_delta() -> None:
    async with running() as (engine, upstream):
        upstream.queue(Script(text="x" * (MAX_EVENT_BYTES + 1)))
        error, text = await failure(engine, a_request())
        assert (type(error), error.code, text) == (EngineError, "upstream_protocol", "")


async def test_parts_and_pictures_arrive_in_order_byte_for_byte() -> None:
    pictures = (bytes(range(256)), b"second" * 500_000, b"\x00")
    refs = [MediaRef("file:never-sent", Detail.AUTO, f"messages.0.content.{index}") for index in range(3)]
    messages = (
        Message("system", (TextPart("Be brief."),)),
        Message("user", (TextPart("first"), refs[0], TextPart("second"), refs[1], refs[2], TextPart("which?"))),
    )
    async with running() as (engine, upstream):
        await answer(engine, a_request(messages=messages, pictures=pictures))
    body = json.loads(upstream.received[0].body)
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    content = body["messages"][1]["content"]
    assert [part["type"] for part in content] == ["text", "image_url", "text", "image_url", "image_url", "text"]
    urls = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
    assert tuple(base64.b64decode(url.removeprefix("data:image/png;base64,")) for url in urls) == pictures
    assert b"never-sent" not in upstream.received[0].body


async def test_closing_the_stream_closes_the_connection() -> None:
    async with running() as (engine, upstream):
        upstream.queue(Script(itl_s=30.0))
        async with aclosing(engine.submit(a_request())) as events:
            assert await anext(events) == Delta("A", 1)
            assert (await engine.stats()).running == 1
        await asyncio.wait_for(upstream.received[0].disconnected.wait(), SOON_S)
        assert not upstream.received[0].finished.is_set()
        assert (await engine.stats()).running == 0


async def test_cancelling_the_reader_while_it_waits_for_the_first_token_closes_the_connection() -> None:
    async with running() as (engine, upstream):
        upstream.queue(Script(role_chunk_s=None, ttft_s=30.0))
        reading = asyncio.create_task(answer(engine, a_request()))
        await asyncio.wait_for(upstream.arrived.wait(), SOON_S)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await asyncio.wait_for(upstream.received[0].disconnected.wait(), SOON_S)


@pytest.mark.parametrize("script", [Script(role_chunk_s=None, ttft_s=30.0), Script(itl_s=30.0)])
async def test_cancel_by_id_ends_stream_and_connection(script: Script) -> None:
    async with running() as (engine, upstream):
        upstream.queue(script)
        reading = asyncio.create_task(failure(engine, a_request("r7")))
        await asyncio.wait_for(upstream.arrived.wait(), SOON_S)
        await asyncio.sleep(0.05)
        await engine.cancel("r7")
        await engine.cancel("r7")
        error, _ = await asyncio.wait_for(reading, SOON_S)
        assert (type(error), error.code) == (EngineError, "request_cancelled")
        await asyncio.wait_for(upstream.received[0].disconnected.wait(), SOON_S)


async def test_cancel_before_the_head_arrives() -> None:
    """A server that accepts and says nothing: where a request waits while a real engine queues it."""
    async with silent_after_models() as url:
        engine = UpstreamEngine(UpstreamConfig(url=url))
        await engine.start()
        reading = asyncio.create_task(failure(engine, a_request("r8")))
        await asyncio.sleep(0.1)
        await engine.cancel("r8")
        error, _ = await asyncio.wait_for(reading, SOON_S)
        assert error.code == "request_cancelled"
        await engine.close()


@tried
async def test_silence_is_a_timeout_before_and_after_the_head() -> None:
    async with silent_after_models() as url:
        engine = UpstreamEngine(UpstreamConfig(url=url, read_timeout_s=0.2))
        await engine.start()
        error, _ = await asyncio.wait_for(failure(engine, a_request()), SOON_S)
        assert error.code == "upstream_timeout"
        await engine.close()
    async with running(read_timeout_s=0.5) as (engine, upstream):
        upstream.queue(Script(itl_s=30.0))
        error, text = await asyncio.wait_for(failure(engine, a_request()), SOON_S)
        assert (type(error), error.code, text) == (EngineError, "upstream_timeout", "A")
        await asyncio.wait_for(upstream.received[0].disconnected.wait(), SOON_S)


@tried
async def test_a_long_answer_is_no_timeout() -> None:
    async with running(read_timeout_s=1.0) as (engine, upstream):
        upstream.queue(Script(itl_s=0.15))
        text, _ = await answer(engine, a_request())
        assert text == Script().text


async def test_two_streams_do_not_mix() -> None:
    scripts = [Script(text=" ".join([word] * 40), itl_s=0.002) for word in ("left", "right", "top", "bottom")]
    async with running() as (engine, upstream):
        upstream.queue(*scripts)
        answers = await asyncio.gather(*(answer(engine, a_request(f"r{index}")) for index in range(4)))
    assert sorted(text for text, _ in answers) == sorted(script.text for script in scripts)


async def test_connections_are_reused_after_a_whole_answer() -> None:
    async with running(max_connections=1) as (engine, upstream):
        for _ in range(3):
            await answer(engine, a_request())
        assert len({received.client for received in upstream.received}) == 1


@tried
async def test_a_full_pool_is_no_sign_of_ill_health() -> None:
    async with running(max_connections=1, health_interval_s=0.05, connect_timeout_s=0.3) as (engine, upstream):
        upstream.queue(Script(itl_s=0.2))
        await answer(engine, a_request())
        assert engine.unready_reason() is None


async def test_closing_the_engine_ends_its_requests() -> None:
    async with running() as (engine, upstream):
        upstream.queue(Script(itl_s=30.0))
        reading = asyncio.create_task(failure(engine, a_request()))
        await asyncio.wait_for(upstream.arrived.wait(), SOON_S)
        await asyncio.sleep(0.05)
        await engine.close()
        await engine.close()
        error, _ = await asyncio.wait_for(reading, SOON_S)
        assert error.code == "request_cancelled"
        late, _ = await failure(engine, a_request())
        assert type(late) is EngineError
        assert engine.unready_reason() == "the engine is closed"


@tried
async def test_nobody_listens_at_start() -> None:
    url = f"http://127.0.0.1:{_free_port()}"
    engine = UpstreamEngine(UpstreamConfig(url=url, ready_timeout_s=0.3, model="vlm"))
    with pytest.raises(EngineError) as caught:
        await engine.start()
    assert caught.value.message == (
        f"the upstream {url}/v1, model vlm, was not ready within 0.3 s: "
        "the upstream cannot be reached: connection refused or host unreachable"
    )
    assert caught.value.code == "upstream_unavailable"
    assert engine.unready_reason() is not None


async def test_start_waits_while_the_upstream_loads() -> None:
    upstream = ScriptedUpstream()
    upstream.loading = True
    async with serve(upstream) as url:
        engine = UpstreamEngine(UpstreamConfig(url=url))
        starting = asyncio.create_task(engine.start())
        await asyncio.sleep(0.1)
        assert not starting.done()
        upstream.loading = False
        await asyncio.wait_for(starting, SOON_S)
        await engine.close()


async def test_the_key_is_sent_and_never_told() -> None:
    upstream = ScriptedUpstream(api_key="right")
    async with running(upstream, api_key=SecretStr("right")) as (engine, _):
        await answer(engine, a_request())
        assert upstream.received[0].authorization == "Bearer right"
    async with serve(upstream) as url:
        told: list[str] = []
        for key in (SecretStr("wrong"), None):
            engine = UpstreamEngine(UpstreamConfig(url=url, api_key=key))
            with pytest.raises(ConfigError) as caught:
                await engine.start()
            told.append(caught.value.message)
    assert told == [
        "GET /v1/models: the upstream refuses opsin's key for it; is that of --upstream-api-key the right one?",
        "GET /v1/models: the upstream wants a key, and there is none for it; give one with --upstream-api-key",
    ]


async def test_a_key_that_is_withdrawn() -> None:
    upstream = ScriptedUpstream()
    async with running(upstream, health_interval_s=0.05) as (engine, _):
        upstream.api_key = "new"
        error, _ = await failure(engine, a_request())
        assert (type(error), error.code) == (UpstreamMisconfigured, "upstream_unauthorized")
        await _until_reason(engine, "the upstream refuses opsin's key for it")
        upstream.api_key = None
        await _until_reason(engine, None)


async def test_a_stream_that_a_vanished_upstream_left_open_ends() -> None:
    """vLLM closes its port on SIGTERM and leaves streams open, silent for good."""
    async with open_without_listener() as (url, leave):
        engine = UpstreamEngine(UpstreamConfig(url=url, health_interval_s=0.1))
        await engine.start()
        async with aclosing(engine.submit(a_request())) as events:
            assert await anext(events) == Delta("A", 1)
            leave()
            with pytest.raises(EngineError) as caught:
                await asyncio.wait_for(anext(events), SOON_S)
        assert (caught.value.code, caught.value.message) == (
            "upstream_truncated",
            "the upstream is gone and has left its stream open",
        )
        await engine.close()


async def test_a_silent_stream_of_an_upstream_that_listens_goes_on() -> None:
    async with open_without_listener() as (url, _):
        engine = UpstreamEngine(UpstreamConfig(url=url, health_interval_s=0.05))
        await engine.start()
        async with aclosing(engine.submit(a_request())) as events:
            await anext(events)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(events), 0.5)
        await engine.close()


async def test_an_upstream_that_goes_away() -> None:
    async with serve(ScriptedUpstream()) as url:
        engine = UpstreamEngine(UpstreamConfig(url=url))
        await engine.start()
    error, _ = await failure(engine, a_request())
    assert (type(error), error.code) == (EngineError, "upstream_unavailable")
    reason = engine.unready_reason()
    assert reason is not None
    assert "127.0.0.1" not in reason
    await engine.close()


def _models_only(chat: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.Application:
    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", chat)
    return app


async def test_one_connection_that_breaks_before_the_head_stops_no_other_request() -> None:
    async def broken(request: web.Request) -> web.Response:
        await request.read()
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    async with TestServer(_models_only(broken)) as server:
        engine = UpstreamEngine(UpstreamConfig(url=str(server.make_url("/"))))
        await engine.start()
        error, _ = await failure(engine, a_request())
        assert (error.code, error.not_begun, engine.unready_reason()) == ("upstream_unavailable", False, None)
        await engine.close()


async def test_an_upstream_whose_list_of_models_has_no_end() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with suppress(ConnectionError):
            while True:
                await response.write(b" " * 2**20)
        return response

    app = web.Application()
    app.router.add_get("/v1/models", endless)
    async with TestServer(app) as server:
        with pytest.raises(ConfigError, match="no list of models"):
            await UpstreamEngine(UpstreamConfig(url=str(server.make_url("/")))).start()


async def test_a_model_that_is_not_there() -> None:
    async with serve(ScriptedUpstream()) as url:
        with pytest.raises(ConfigError, match="no model named nothing"):
            await UpstreamEngine(UpstreamConfig(url=url, model="nothing")).start()


async def test_a_server_that_is_something_else() -> None:
    async with serve(ScriptedUpstream()) as url:
        with pytest.raises(ConfigError, match="404"):
            await UpstreamEngine(UpstreamConfig(url=f"{url}/elsewhere")).start()


async def test_the_scripted_server_as_a_program() -> None:
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "opsin.testing.scripted_upstream", "--port", "0", stdout=asyncio.subprocess.PIPE
    )
    assert program.stdout is not None
    try:
        port = json.loads(await asyncio.wait_for(program.stdout.readline(), 20))["port"]
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
            queued = [{"mode": "truncated", "text": "one two three"}, {"text": "four"}]
            async with client.post("/__scripts", json=queued) as response:
                assert await response.json() == {"queued": 2}
            for wrong in (b"{", b'[{"mode":"no"}]', b'[{"ttft_s":"x"}]'):
                async with client.post("/__scripts", data=wrong) as response:
                    assert response.status == 400
            engine = UpstreamEngine(UpstreamConfig(url=f"http://127.0.0.1:{port}"))
            await engine.start()
            assert (await failure(engine, a_request()))[1] == "one two"
            assert (await answer(engine, a_request()))[0] == "four"
            await engine.close()
            async with client.get("/__scripts") as response:
                told = await response.json()
        assert told["queued"] == 0
        assert [received["finished"] for received in told["received"]] == [True, True]
        assert told["received"][0]["body"]["messages"][0]["content"] == "What is it?"
    finally:
        program.terminate()
        await program.wait()


async def test_the_engines_own_stages_and_its_queue_are_read_from_its_metrics() -> None:
    def page(seconds: float, requests: int, waiting: int) -> bytes:
        prefill = "vllm:request_prefill_time_seconds"
        return f"{prefill}_sum {seconds}\n{prefill}_count {requests}\nvllm:num_requests_waiting {waiting}\n".encode()

    upstream = ScriptedUpstream(owned_by="vllm")
    upstream.metrics = page(9.0, 3, 0)
    async with running(upstream, health_interval_s=0.05) as (engine, _):
        upstream.queue(Script(itl_s=30.0))
        reading = asyncio.create_task(failure(engine, a_request()))
        await asyncio.wait_for(upstream.arrived.wait(), SOON_S)
        upstream.metrics = page(9.5, 5, 7)
        async with asyncio.timeout(SOON_S):
            while (stats := await engine.stats()).waiting == 0:  # noqa: ASYNC110  # looks tell nobody
                await asyncio.sleep(0.02)
        assert (stats.running, stats.waiting) == (0, 1)
        assert stats.stage_sums == (StageSum(source="vllm", stage=Stage.PREFILL, seconds=0.5, requests=2),)
        await engine.cancel("r1")
        await reading


async def _until_reason(engine: UpstreamEngine, reason: str | None) -> None:
    async with asyncio.timeout(SOON_S):
        while engine.unready_reason() != reason:  # noqa: ASYNC110  # probes tell nobody
            await asyncio.sleep(0.02)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@asynccontextmanager
async def silent_after_models() -> AsyncGenerator[str, None]:
    """Answers ``/v1/models`` and leaves every other request without a head."""
    models = b'{"data":[{"id":"m"}]}'
    writers: list[asyncio.StreamWriter] = []

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        if (await reader.readline()).startswith(b"GET"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(models), models))
            await writer.drain()

    server = await asyncio.start_server(converse, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.close()


@asynccontextmanager
async def exclusive() -> AsyncGenerator[tuple[UpstreamEngine, ScriptedUpstream, PictureCache], None]:
    """In front of what keeps pictures as vLLM does, and has no other client."""
    cache = PictureCache()
    async with running(ScriptedUpstream(owned_by="vllm", pictures=cache), exclusive=True) as (engine, upstream):
        yield engine, upstream, cache


def about(*pictures: bytes) -> GenerationRequest:
    refs = tuple(MediaRef("", Detail.AUTO, f"messages.0.content.{at}") for at in range(len(pictures)))
    return a_request(messages=(Message("user", refs),), pictures=pictures)


async def ask(engine: UpstreamEngine, *pictures: bytes) -> Finished:
    """As the gateway does: reserves, submits, releases."""
    request = about(*pictures)
    await engine.reserve(request.id, [picture.key for picture in request.pictures])
    try:
        return end_of((await answer(engine, request))[1])
    finally:
        await engine.release(request.id)


def num_by_name(end: Finished) -> int:
    assert end.remote is not None
    return end.remote.num_by_name


def by_name_alone(upstream: ScriptedUpstream) -> list[list[bool]]:
    """Of every request that came, which pictures came without their bytes."""
    bodies = [json.loads(received.body)["messages"] for received in upstream.received]
    return [
        [part["image_url"] is None for message in body for part in message["content"] if part["type"] == "image_url"]
        for body in bodies
    ]


async def test_a_picture_that_the_only_client_sent_before_goes_by_name_and_a_forgotten_one_once_more() -> None:
    async with exclusive() as (engine, upstream, cache):
        assert num_by_name(await ask(engine, b"a")) == 0
        assert num_by_name(await ask(engine, b"a", b"b")) == 1
        cache.names.clear()
        assert num_by_name(await ask(engine, b"a", b"b")) == 0
        assert num_by_name(await ask(engine, b"b", b"a")) == 2
        assert by_name_alone(upstream) == [[False], [True, False], [True, True], [False, False], [True, True]]
        assert engine.capabilities().reports_cache


async def test_a_picture_that_never_stays_is_not_asked_for_again_and_again() -> None:
    async with exclusive() as (engine, upstream, cache):
        for _ in range(5):
            await ask(engine, b"too large for its cache")
            cache.names.clear()
        assert by_name_alone(upstream) == [[False], [True], [False], [True], [False], [False], [False]]


async def test_what_is_missed_is_asked_for_again_once_and_no_other_refusal_is() -> None:
    async with exclusive() as (engine, upstream, cache):
        await ask(engine, b"a")
        upstream.pictures = None
        gone = Script(status=400, failure=picture_gone(0))
        for scripts, requests in (((MODES["http_400_context"],), 1), ((MODES["http_500"],), 1), ((gone, gone), 2)):
            before = len(upstream.received)
            upstream.queue(*scripts)
            with pytest.raises(OpsinError):
                await ask(engine, b"a")
            assert len(upstream.received) - before == requests
            upstream.pictures = cache
            await ask(engine, b"a")
            upstream.pictures = None


async def test_a_request_that_is_cancelled_while_it_asks_again_ends() -> None:
    async with exclusive() as (engine, upstream, cache):
        await ask(engine, b"a")
        cache.names.clear()
        request = about(b"a")
        await engine.reserve(request.id, [picture.key for picture in request.pictures])
        upstream.queue(Script(ttft_s=60))
        upstream.arrived.clear()
        waiting = asyncio.create_task(failure(engine, request))
        await upstream.arrived.wait()
        while upstream.received[-1].script.status != 200:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.001)
        await engine.cancel(request.id)
        assert (await waiting)[0].code == "request_cancelled"


async def test_only_what_takes_names_for_pictures_can_be_exclusive() -> None:
    async with serve(ScriptedUpstream(owned_by="llamacpp")) as url:
        with pytest.raises(ConfigError, match=r"--upstream-exclusive .* this one is llama\.cpp"):
            await UpstreamEngine(UpstreamConfig(url=url, exclusive=True)).start()


async def test_where_tenants_share_llama_cpp_its_prompt_cache_is_left_alone_from_the_second_on() -> None:
    async with running(ScriptedUpstream(owned_by="llamacpp")) as (engine, upstream):
        for scope in ("one", "one", "two", "one"):
            await answer(engine, replace(a_request(), scope=scope))
        sent = [json.loads(received.body).get("cache_prompt") for received in upstream.received]
        assert sent == [None, None, False, False]


async def test_what_the_engine_reports_is_told_with_what_is_left_of_its_time() -> None:
    metrics = {"queue_time_ms": 10.0, "time_to_first_token_ms": 20.0, "generation_time_ms": 30.0}
    async with running(ScriptedUpstream(owned_by="vllm")) as (engine, upstream):
        upstream.queue(Script(ttft_s=0.2, beside_usage={"metrics": metrics}))
        end = end_of((await answer(engine, a_request()))[1])
        assert end.stages_s == pytest.approx({Stage.QUEUE: 0.01, Stage.PREFILL: 0.02, Stage.DECODE: 0.03})
        assert end.remote is not None
        assert end.remote.source == "vllm"
        assert end.remote.rest_s >= 0.2 - 0.06
        upstream.queue(Script(beside_usage={"metrics": {**metrics, "generation_time_ms": 1e6}}))
        end = end_of((await answer(engine, a_request()))[1])
        assert end.stages_s == {}  # longer than the whole answer took


@asynccontextmanager
async def open_without_listener() -> AsyncGenerator[tuple[str, Callable[[], None]], None]:
    """Says one word on each stream and no more; the second value closes its port, and no connection."""
    models = b'{"data":[{"id":"m"}]}'
    word = b'data: {"choices":[{"delta":{"content":"A"}}]}\n\n'
    writers: list[asyncio.StreamWriter] = []

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        if (await reader.readline()).startswith(b"GET"):
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(models) + models)
            writer.close()
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + word)

    server = await asyncio.start_server(converse, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", server.close
    finally:
        server.close()
        for writer in writers:
            writer.close()
