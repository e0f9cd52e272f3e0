"""Routes, access, streaming and disconnects over real sockets, with the fake engine."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import signal
from typing import Any

import pytest
from openai import AsyncOpenAI, AuthenticationError

from opsin.core.errors import ConfigError, Overloaded
from opsin.gateway.auth import Caller, check_exposure
from opsin.gateway.config import GatewayConfig
from opsin.gateway.exchange import LAST_WORDS_S
from opsin.settings import load_settings
from opsin.testing.scripted_upstream import ScriptedUpstream
from opsin.testing.scripted_upstream import serve as scripted
from tests.corpus.bodies import image_body, text_body
from tests.corpus.pictures import animation, data_url, encoded, exif_block, good_pictures, scene
from tests.integration.gateways import Served, gateway

ROUTES = ("/v1/models", "/v1/models/fake", "/metrics", "/version", "/docs", "/openapi.json", "/health", "/ready")


async def test_every_route_answers() -> None:
    async with gateway() as served:
        for route in ROUTES:
            async with served.http.get(served.url + route) as response:
                assert response.status == 200, route
                assert await response.read()


async def test_unknown_routes_and_methods_answer_in_openais_shape() -> None:
    async with gateway() as served:
        async with served.http.get(f"{served.url}/v1/nothing") as response:
            assert (response.status, (await response.json())["error"]["code"]) == (404, "not_found")
        async with served.http.get(f"{served.url}/v1/chat/completions") as response:
            assert (response.status, (await response.json())["error"]["code"]) == (405, "method_not_allowed")
        async with served.http.get(f"{served.url}/v1/models/other") as response:
            assert (response.status, (await response.json())["error"]["code"]) == (404, "model_not_found")


async def test_a_405_names_all_methods_of_its_path_and_a_401_how_to_send_a_key() -> None:
    async with gateway(gateway={"api_key": "secret"}) as served:
        for method, route, allowed in (
            ("PUT", "/v1/files", "GET, HEAD, POST"),
            ("POST", "/v1/files/file-1", "DELETE, GET, HEAD"),
            ("GET", "/v1/chat/completions", "POST"),
            ("OPTIONS", "/health", "GET, HEAD"),
        ):
            async with served.http.request(method, served.url + route) as response:
                assert (response.status, response.headers["allow"]) == (405, allowed), route
        for method, route in (("POST", "/v1/chat/completions"), ("GET", "/v1/files"), ("GET", "/v1/models")):
            async with served.http.request(method, served.url + route) as response:
                assert (response.status, response.headers["www-authenticate"]) == (401, "Bearer"), route
        async with served.http.get(f"{served.url}/v1/nothing") as response:
            assert not {"allow", "www-authenticate"} & {name.lower() for name in response.headers}


async def test_routes_that_clients_know_from_elsewhere_say_what_to_use_instead() -> None:
    async with gateway() as served:
        for route, said in (
            ("/", "/docs"),
            ("/v1/nothing", "/docs"),
            ("/v1/completions", "use /v1/chat/completions"),
            ("/v1/responses", "use /v1/chat/completions"),
            ("/chat/completions", "did you mean /v1/chat/completions?"),
            ("/v1/v1/chat/completions/", "did you mean /v1/chat/completions?"),
        ):
            async with served.http.post(served.url + route, json={}) as response:
                assert response.status == 404
                assert said in (await response.json())["error"]["message"]


async def test_the_docs_show_the_address_at_which_they_are_read() -> None:
    async with gateway() as served, served.http.get(f"{served.url}/docs") as response:
        assert f"curl {served.url}/v1/chat/completions" in await response.text()


async def test_each_of_several_keys_opens() -> None:
    async with gateway(gateway={"api_key": ["first", "second"]}) as served:
        for key, status in (("first", 200), ("second", 200), ("third", 401), ("first second", 401), ("", 401)):
            headers = {"Authorization": f"Bearer {key}"}
            async with served.http.get(f"{served.url}/v1/models", headers=headers) as response:
                assert response.status == status, key


async def test_a_key_guards_every_route_but_health_and_ready() -> None:
    async with gateway(gateway={"api_key": "secret"}) as served:
        for route in ROUTES:
            async with served.http.get(served.url + route) as response:
                assert response.status == (200 if route in ("/health", "/ready") else 401), route
        assert (await served.chat())[0] == 401
        client = AsyncOpenAI(base_url=f"{served.url}/v1", api_key="wrong", max_retries=0)
        with pytest.raises(AuthenticationError):
            await client.models.list()
        await client.close()
        client = AsyncOpenAI(base_url=f"{served.url}/v1", api_key="secret", max_retries=0)
        assert [model.id async for model in client.models.list()] == ["fake"]
        await client.close()


def test_strangers_are_never_served_by_accident() -> None:
    with pytest.raises(ConfigError, match=r"--api-key.*--no-auth.*--host"):
        check_exposure(GatewayConfig(host="0.0.0.0"))
    for config in ({"host": "127.0.0.1"}, {"host": "::1"}, {"host": "localhost"}, {"host": "0.0.0.0", "no_auth": True}):
        check_exposure(GatewayConfig.model_validate(config))


async def test_the_same_text_streamed_and_whole() -> None:
    async with gateway(fake={"text": "One two three."}) as served:
        _, whole = await served.chat()
        assert whole["choices"][0]["message"]["content"] == "One two three."
        body = text_body(stream=True, stream_options={"include_usage": True}, max_tokens=100)
        async with served.http.post(f"{served.url}/v1/chat/completions", data=body) as response:
            assert response.content_type == "text/event-stream"
            lines = [line.decode().strip() async for line in response.content if line.strip()]
        assert lines[-1] == "data: [DONE]"
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
        *deltas, finish, usage = chunks
        assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in deltas) == "One two three."
        assert deltas[0]["choices"][0]["delta"]["role"] == "assistant"
        assert finish["choices"][0]["finish_reason"] == "stop"
        assert set(finish["opsin"]["timeline"]) >= {"media_load_ms", "queue_ms", "decode_ms", "total_ms"}
        assert usage["choices"] == []
        assert usage["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("failure", ["before_first_token", "out_of_memory"])
async def test_a_failure_before_the_first_token_is_a_status(failure: str) -> None:
    async with gateway(fake={"failure": failure}) as served:
        for stream in (False, True):
            status, body = await served.chat(stream=stream)
            assert status == 503
            assert body["error"]["type"] == "engine_error"
        await served.until_running(0)


async def test_a_failure_after_the_first_token_is_an_event_without_done() -> None:
    async with gateway(fake={"failure": "mid_stream"}) as served:
        body = text_body(stream=True, max_tokens=100)
        async with served.http.post(f"{served.url}/v1/chat/completions", data=body) as response:
            assert response.status == 200
            lines = [line.decode().strip() async for line in response.content if line.strip()]
        assert "[DONE]" not in lines[-1]
        assert "error" in json.loads(lines[-1].removeprefix("data: "))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_the_engine(stream: bool) -> None:
    async with gateway(fake={"text": "word " * 500, "itl_s": 0.05}) as served:
        request = asyncio.create_task(_read_some(served, stream))
        await served.until_running(1)
        request.cancel()
        await served.until_running(0)
        assert (await served.chat(max_tokens=1))[0] == 200


async def _read_some(served: Served, stream: bool) -> None:
    body = text_body(stream=stream, max_tokens=500)
    async with served.http.post(f"{served.url}/v1/chat/completions", data=body) as response:
        await response.read()


async def test_one_request_more_than_the_limit_is_refused_and_told_when_to_return() -> None:
    async with gateway(gateway={"max_requests": 1}, fake={"ttft_s": 1.0}) as served:
        first = asyncio.create_task(served.chat())
        await served.until_running(1)
        async with served.http.post(f"{served.url}/v1/chat/completions", data=text_body()) as response:
            assert response.status == 503
            assert response.headers["x-should-retry"] == "true"
            assert response.headers["retry-after"] == "1"
            assert (await response.json())["error"]["code"] == "overloaded"
        assert (await first)[0] == 200


async def test_a_good_picture_reaches_a_chat_engine_and_a_broken_one_does_not() -> None:
    good = next(iter(good_pictures()))
    async with gateway() as served:
        async with served.http.post(
            f"{served.url}/v1/chat/completions", data=image_body(data_url(good.data))
        ) as response:
            assert response.status == 200, await response.text()
        async with served.http.post(
            f"{served.url}/v1/chat/completions", data=image_body(data_url(good.data[: len(good.data) // 2]))
        ) as response:
            assert response.status == 422
        await served.until_running(0)


async def test_an_answer_says_how_its_pictures_were_read() -> None:
    """Upright, in order, and what of an animation was left out; streamed on the chunk with the reason of the end."""
    turned = encoded(scene(), "jpeg", exif=b"Exif\0\0" + exif_block(6))
    urls = (data_url(turned, "image/jpeg"), data_url(animation("gif"), "image/gif"))
    content = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    messages = [{"role": "user", "content": content}]
    expected = [
        {"format": "jpeg", "width": 48, "height": 64},
        {"format": "gif", "width": 16, "height": 12, "frames": 3, "frames_used": 1},
    ]
    async with gateway() as served:
        _, whole = await served.chat(messages=messages)
        assert whole["opsin"]["images"] == expected
        assert list(whole["opsin"]) == ["timeline", "images"]
        body = {"messages": messages, "stream": True}
        async with served.http.post(f"{served.url}/v1/chat/completions", json=body) as response:
            lines = [line.decode().strip() async for line in response.content if line.strip()]
        *deltas, finish = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
        assert finish["opsin"]["images"] == expected
        assert not [chunk for chunk in deltas if "opsin" in chunk]
        _, without = await served.chat()
        assert "images" not in without["opsin"]


async def test_a_start_tells_how_far_its_workers_are_confined(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with gateway() as served:
        assert f"sandbox={served.application.renderer.level.label}" in caplog.text


async def test_the_request_id_is_echoed_if_it_is_plain() -> None:
    async with gateway() as served:
        for sent, kept in (("abc-123", True), ("white space", False)):
            headers = {"x-request-id": sent}
            async with served.http.post(
                f"{served.url}/v1/chat/completions", data=text_body(), headers=headers
            ) as response:
                assert (response.headers["x-request-id"] == sent) is kept
        for route in (*ROUTES, "/v1/nothing"):
            async with served.http.get(served.url + route, headers={"x-request-id": "abc-123"}) as response:
                assert response.headers["x-request-id"] == "abc-123", route


async def test_a_compressed_body_is_refused() -> None:
    async with gateway() as served:
        headers = {"content-encoding": "gzip"}
        async with served.http.post(f"{served.url}/v1/chat/completions", data=b"\x1f\x8b", headers=headers) as response:
            assert (await response.json())["error"]["code"] == "unsupported_content_encoding"


async def test_a_client_that_leaves_during_upload_is_not_our_error() -> None:
    async with gateway() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rsplit(":", 1)[1]))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        await writer.drain()
        writer.close()
        await asyncio.sleep(0.2)
        async with served.http.get(f"{served.url}/metrics") as response:
            assert "internal_error" not in await response.text()
        assert reader.at_eof() or not await reader.read()


async def test_a_client_that_leaves_while_its_body_is_taken_apart_gives_its_place_back() -> None:
    large = image_body(data_url(encoded(scene(size=(600, 600)), "png")))
    async with gateway(gateway={"max_requests": 1}, media={"render_timeout_s": 300}) as served:
        for pid in served.application.renderer.worker_pids:
            os.kill(pid, signal.SIGSTOP)
        request = asyncio.create_task(_posted(served, large))
        async with asyncio.timeout(30):
            while not _is_full(served):  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.01)
            for _ in range(5):  # by then its body has come, and is with the worker
                await served.http.get(f"{served.url}/health")
            request.cancel()
            while _is_full(served):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)


def _is_full(served: Served) -> bool:
    try:
        with served.application.gateway.admission.admit(Caller("test")):
            return False
    except Overloaded:
        return True


async def _posted(served: Served, body: bytes) -> None:
    async with served.http.post(f"{served.url}/v1/chat/completions", data=io.BytesIO(body)) as response:
        await response.read()


async def test_an_upstreams_own_model_name_is_served() -> None:
    async with (
        scripted(ScriptedUpstream(model="their-model")) as url,
        gateway(engine="upstream", upstream={"url": url}) as served,
    ):
        async with served.http.get(f"{served.url}/v1/models") as response:
            assert [model["id"] for model in (await response.json())["data"]] == ["their-model"]
        assert (await served.chat(model="their-model"))[0] == 200
        assert (await served.chat(model="other"))[0] == 404


@pytest.mark.parametrize("key", ["", " k ", "cl\u00e9", "two words"])
def test_a_key_that_no_header_carries_is_refused_at_start(key: str) -> None:
    with pytest.raises(ConfigError, match="api_key"):
        load_settings({"gateway": {"api_key": key}})


async def test_a_slow_start_is_a_stream_of_comments_and_then_the_answer() -> None:
    async with (
        gateway(fake={"ttft_s": 0.5}, gateway={"heartbeat_s": 0.1}) as served,
        served.http.post(f"{served.url}/v1/chat/completions", data=text_body(stream=True)) as response,
    ):
        assert response.status == 200
        text = await response.text()
    assert text.startswith(": waiting\n\n")
    assert 2 <= text.count(": waiting\n\n") <= 6
    assert text.endswith("data: [DONE]\n\n")


async def test_a_failure_after_a_comment_is_an_event_without_done() -> None:
    async with (
        gateway(fake={"ttft_s": 0.3, "failure": "out_of_memory"}, gateway={"heartbeat_s": 0.05}) as served,
        served.http.post(f"{served.url}/v1/chat/completions", data=text_body(stream=True)) as response,
    ):
        text = await response.text()
        async with served.http.get(f"{served.url}/metrics") as metrics:
            assert "opsin_oom_total 1.0" in await metrics.text()
    assert json.loads(text.rpartition("data: ")[2])["error"]["code"] == "engine_out_of_memory"
    assert "[DONE]" not in text


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_takes_too_long_is_504_and_frees_the_engine(stream: bool) -> None:
    async with gateway(fake={"ttft_s": 60}, gateway={"request_timeout_s": 0.3}) as served:
        async with served.http.post(f"{served.url}/v1/chat/completions", data=text_body(stream=stream)) as response:
            assert response.status == 504
            assert response.headers["x-should-retry"] == "false"
            error = (await response.json())["error"]
        assert (error["code"], error["type"]) == ("deadline_exceeded", "timeout_error")
        await served.until_running(0)


async def test_a_deadline_in_the_middle_of_a_stream_is_an_event() -> None:
    async with (
        gateway(fake={"itl_s": 0.3}, gateway={"request_timeout_s": 0.5}) as served,
        served.http.post(f"{served.url}/v1/chat/completions", data=text_body(stream=True, max_tokens=16)) as response,
    ):
        text = await response.text()
        await served.until_running(0)
    assert json.loads(text.rpartition("data: ")[2])["error"]["code"] == "deadline_exceeded"


async def test_a_client_that_does_not_read_gives_its_place_back() -> None:
    """The sockets' buffers hold some of the answer, the rest waits in vain."""
    limits = {"max_requests": 1, "request_timeout_s": 0.5}
    async with gateway(gateway=limits, fake={"text": f"{'x' * 2**20} " * 64}) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rsplit(":", 1)[1]), limit=1)
        body = text_body(stream=True, max_tokens=64)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert await reader.read(1)  # it has begun
        await asyncio.sleep(1)  # beyond the time of the request itself
        assert (await served.chat(max_tokens=1))[0] == 503
        async with asyncio.timeout(LAST_WORDS_S + 10):
            while (await served.chat(max_tokens=1))[0] != 200:  # noqa: ASYNC110 - it is what a client would do
                await asyncio.sleep(0.1)
        writer.close()


async def test_a_body_that_never_ends_is_408_and_gives_its_place_back() -> None:
    async with gateway(gateway={"body_timeout_s": 0.2, "max_requests": 1}) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rsplit(":", 1)[1]))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 408 " in head
        assert b"x-should-retry: false" in head
        writer.close()
        assert (await served.chat())[0] == 200


async def test_a_body_of_a_byte_now_and_then_is_408_long_before_it_could_end() -> None:
    async with gateway() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rsplit(":", 1)[1]))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")

        async def trickle() -> None:
            while True:
                await asyncio.sleep(0.1)
                writer.write(b" ")

        trickling = asyncio.create_task(trickle())
        async with asyncio.timeout(30):  # of 60 that the whole body has
            answer = await reader.readuntil(b"min_body_bytes_per_s")
        assert b" 408 " in answer
        trickling.cancel()
        writer.close()


async def test_compressed_twice_is_compressed() -> None:
    async with gateway() as served:
        headers = [("content-encoding", "identity"), ("content-encoding", "gzip")]
        async with served.http.post(f"{served.url}/v1/chat/completions", data=b"{}", headers=headers) as response:
            assert (await response.json())["error"]["code"] == "unsupported_content_encoding"


async def test_a_large_body_loses_no_picture_and_reaches_an_upstream_untouched() -> None:
    picture = encoded(scene(size=(1200, 900)), "png") + b"\0" * 2**20  # what follows the picture is ignored
    upstream = ScriptedUpstream()
    async with scripted(upstream) as url, gateway(engine="upstream", upstream={"url": url}) as served:
        async with served.http.post(
            f"{served.url}/v1/chat/completions", data=io.BytesIO(image_body(data_url(picture)))
        ) as response:
            assert response.status == 200, await response.text()
        (received,) = upstream.received
        assert json.loads(received.body)["messages"][0]["content"][0]["image_url"]["url"] == data_url(picture)


async def test_large_bodies_are_refused_like_small_ones() -> None:
    padding = "x" * 300_000
    async with gateway(gateway={"max_text_bytes": 400_000}) as served:

        async def refused(body: bytes) -> tuple[int, str, str | None]:
            async with served.http.post(f"{served.url}/v1/chat/completions", data=body) as response:
                error = (await response.json())["error"]
                return response.status, error["code"], error["param"]

        place = "messages.0.content.0.image_url"
        assert await refused(image_body("data:;base64,!" + padding)) == (400, "invalid_data_url", place)
        assert await refused(image_body(data_url(b"GIF" + b"?" * 300_000))) == (415, "unsupported_image_format", place)
        assert await refused(text_body(junk=padding)[:-1]) == (400, "invalid_json", None)
        assert await refused(text_body(junk=padding * 2)) == (413, "request_too_large", None)
        assert (await served.chat(junk=padding))[0] == 200


MISLABELLED = image_body(data_url(encoded(scene(), "jpeg"), "image/png"))
WARNING = {
    "code": "media_type_mismatch",
    "message": "The picture's bytes are image/jpeg, its stated media type is another one.",
    "param": "messages.0.content.0.image_url",
}


async def test_an_answer_warns_in_its_body_and_header() -> None:
    async with gateway() as served:
        async with served.http.post(f"{served.url}/v1/chat/completions", data=MISLABELLED) as response:
            assert response.headers["x-opsin-warnings"] == "media_type_mismatch"
            assert (await response.json())["opsin"]["warnings"] == [WARNING]
        _, answer = await served.chat()
        assert "warnings" not in answer["opsin"]


@pytest.mark.parametrize(("heartbeat_s", "encode_s", "header"), [(10, 0, "media_type_mismatch"), (0.02, 0.2, None)])
async def test_a_stream_warns_at_its_end_and_in_a_header_if_it_knows(
    heartbeat_s: float, encode_s: float, header: str | None
) -> None:
    """A picture that takes long to load lets the stream begin before anything is known of it."""
    body = json.dumps({**json.loads(MISLABELLED), "stream": True})
    flags: dict[str, Any] = {"gateway": {"heartbeat_s": heartbeat_s}, "inject_delay_s": {"media_load": encode_s}}
    async with (
        gateway(**flags) as served,
        served.http.post(f"{served.url}/v1/chat/completions", data=body) as response,
    ):
        assert response.headers.get("x-opsin-warnings") == header
        lines = [line for line in (await response.text()).split("\n\n") if line.startswith("data: {")]
    *deltas, last = (json.loads(line.removeprefix("data: ")) for line in lines)
    assert [delta.get("opsin") for delta in deltas] == [None] * len(deltas)
    assert last["opsin"]["warnings"] == [WARNING]
