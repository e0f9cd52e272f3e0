"""HTTPS, browsers, proxies and the metrics' own port, over real sockets with the fake engine."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from opsin.testing.server_process import ServerProcess
from tests.certificates import certificate
from tests.corpus.bodies import text_body
from tests.integration.gateways import public_side

PAGE = "https://page.example"


async def get(url: str, **options: Any) -> tuple[int, str]:
    async with aiohttp.ClientSession() as http, http.get(url, **options) as response:
        return response.status, await response.text()


@pytest.mark.parametrize("password", [None, "geheim"])
async def test_https_with_a_certificate_of_its_own(tmp_path: Path, password: str | None) -> None:
    chain, key = certificate(tmp_path, *(("-passout", f"pass:{password}") if password else ()))
    trusting = ssl.create_default_context(cafile=str(chain))
    async with public_side(ssl_certfile=chain, ssl_keyfile=key, ssl_keyfile_password=password) as url:
        assert (await get(f"{url}/v1/models", ssl=trusting))[0] == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await get(f"{url}/v1/models")
        with pytest.raises(aiohttp.ClientError):  # plain HTTP on that port
            await get(url.replace("https", "http") + "/v1/models")


@pytest.mark.parametrize("allowed", [PAGE, "*"])
async def test_pages_of_an_allowed_origin_may_ask_and_read_the_headers(allowed: str) -> None:
    question = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    question["Access-Control-Request-Headers"] = "authorization,content-type,x-stainless-lang"
    async with public_side(allowed_origins=[allowed], api_key="k") as url, aiohttp.ClientSession() as http:
        async with http.options(f"{url}/v1/chat/completions", headers=question) as response:
            assert response.status == 200
            assert response.headers["access-control-allow-origin"] == allowed
            assert response.headers["access-control-allow-methods"] == "GET, POST, DELETE"
            assert "x-stainless-lang" in response.headers["access-control-allow-headers"]
        # The answer to a refused request can be read too, or the page could not say why.
        async with http.post(f"{url}/v1/chat/completions", headers={"Origin": PAGE}, json={}) as response:
            assert response.status == 401
            assert response.headers["access-control-allow-origin"] == allowed
            assert "x-request-id" in response.headers["access-control-expose-headers"]


@pytest.mark.parametrize("origins", [[], ["https://other.example"]])
async def test_other_pages_may_not(origins: list[str]) -> None:
    question = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    async with public_side(allowed_origins=origins) as url, aiohttp.ClientSession() as http:
        async with http.options(f"{url}/v1/chat/completions", headers=question) as response:
            assert "access-control-allow-origin" not in response.headers
        async with http.get(f"{url}/v1/models", headers={"Origin": PAGE}) as response:
            assert "access-control-allow-origin" not in response.headers


async def test_a_proxy_may_leave_the_path_on_or_take_it_off() -> None:
    async with public_side(root_path="/vlm") as url:
        for path in ("/v1/models", "/vlm/v1/models", "/vlm/v1/models/fake", "/vlm/health"):
            assert (await get(url + path))[0] == 200, path
        for path in ("/other/v1/models", "/vlmv1/models"):
            assert (await get(url + path))[0] == 404, path
        async with aiohttp.ClientSession() as http:
            for path in ("/v1/files", "/vlm/v1/files"):
                async with http.put(url + path) as response:
                    assert (response.status, response.headers["allow"]) == (405, "GET, HEAD, POST"), path


async def test_metrics_of_their_own_port_need_no_key_and_are_alone() -> None:
    async with public_side(metrics=True, api_key="k") as url:
        status, text = await get(f"{url}/metrics")
        assert status == 200
        assert "opsin_num_requests_running" in text
        for path in ("/v1/models", "/docs", "/health"):
            assert (await get(url + path))[0] == 404, path
    async with public_side(api_key="k", metrics_port=0) as url:
        assert (await get(f"{url}/metrics"))[0] == 401


def test_the_whole_command(tmp_path: Path) -> None:
    """Every flag of the edge at once, in a real process that ends when it is told to."""
    chain, key = certificate(tmp_path)
    words = ["--engine", "fake", "--api-key", "k", "--root-path", "/vlm", "--metrics-port", "0"]
    with ServerProcess(*words, "--ssl-certfile", str(chain), "--ssl-keyfile", str(key)) as process:
        url = process.until_ready()
        assert re.fullmatch(r"https://127\.0\.0\.1:\d+/vlm", url)
        found = _wait_for(process, r"^metrics on (https://127\.0\.0\.1:\d+/metrics)$")
        trusting = ssl.create_default_context(cafile=str(chain))
        assert asyncio.run(get(found, ssl=trusting))[0] == 200
        assert asyncio.run(get(f"{url}/v1/models", ssl=trusting))[0] == 401
        assert asyncio.run(_ask(url, trusting)) == "This answer comes from the fake engine."
    assert process.wait() == 0


async def _ask(url: str, trusting: ssl.SSLContext) -> str:
    body = {"messages": [{"role": "user", "content": "Hello."}]}
    async with (
        aiohttp.ClientSession(headers={"Authorization": "Bearer k"}) as http,
        http.post(f"{url}/v1/chat/completions", json=body, ssl=trusting) as response,
    ):
        return (await response.json())["choices"][0]["message"]["content"]


def _wait_for(process: ServerProcess, pattern: str) -> str:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if found := re.search(pattern, process.log, re.MULTILINE):
            return found[1]
        time.sleep(0.05)
    raise AssertionError(process.log)


async def raw(url: str, *pieces: bytes, pause_s: float = 0.0) -> bytes:
    """Everything that comes back when these bytes are sent, up to the end of the connection."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(pause_s)
        return await asyncio.wait_for(reader.read(), 30)
    finally:
        writer.close()


def head(num_bytes: int) -> bytes:
    """A request whose line and headers, names and values, have so many bytes."""
    fixed = len("/health") + len("connectionclose") + len("x")
    return b"GET /health HTTP/1.1\r\nconnection: close\r\nx: " + b"a" * (num_bytes - fixed) + b"\r\n\r\n"


async def test_a_head_may_have_so_many_bytes_and_not_one_more() -> None:
    async with public_side(max_header_bytes=2000) as url:
        assert (await raw(url, head(2000))).startswith(b"HTTP/1.1 200 ")
        refused = await raw(url, head(2001))
        assert refused.startswith(b"HTTP/1.1 431 ")
        assert b"\r\nx-should-retry: false\r\n" in refused
        body = json.loads(refused.partition(b"\r\n\r\n")[2])
        assert body["error"]["message"] == "the headers are larger than 2000 bytes (max_header_bytes)"


async def test_a_head_in_pieces_is_counted_before_it_is_whole() -> None:
    async with public_side(max_header_bytes=2000) as url:
        pieces = (b"GET /health HTTP/1.1\r\nx: ", *[b"a" * 500] * 6)
        assert (await raw(url, *pieces, pause_s=0.02)).startswith(b"HTTP/1.1 431 ")
        good = head(2000)
        pieces = tuple(good[at : at + 400] for at in range(0, len(good), 400))
        assert (await raw(url, *pieces, pause_s=0.02)).startswith(b"HTTP/1.1 200 ")


async def test_a_head_that_never_ends_is_not_waited_for() -> None:
    async with public_side(header_timeout_s=0.2) as url:
        started = time.monotonic()
        assert await raw(url, b"GET /health HTTP/1.1\r\n") == b""
        assert await raw(url) == b""
        assert time.monotonic() - started < 10


CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"


def chunked(body: bytes, trailers: bytes = b"") -> bytes:
    return CHUNKED + b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(body), body, trailers)


@pytest.mark.parametrize(
    ("before", "piece"),
    [
        (b"2\r\n{}\r\n0\r\n", b"a: b\r\n" * 100),
        (b"2\r\n{}\r\n0\r\nx: ", b"a" * 600),
        (b"2;", b"a" * 600),
    ],
    ids=["many trailers", "one trailer", "chunk extension"],
)
async def test_what_surrounds_chunks_ends_at_the_limit_of_a_head(before: bytes, piece: bytes) -> None:
    """16 MB of trailers took 260 MB of memory."""
    async with public_side(max_header_bytes=2000) as url:
        assert (await raw(url, CHUNKED + before, *[piece] * 4, pause_s=0.05)).startswith(b"HTTP/1.1 431 ")


async def test_trailers_reach_nobody() -> None:
    """They were among the headers of the request, after these were judged."""
    trailers = b"content-encoding: gzip\r\nexpect: 100-continue\r\n"
    async with public_side(max_header_bytes=2000) as url:
        assert (await raw(url, chunked(text_body(), trailers))).startswith(b"HTTP/1.1 200 ")
        assert (await raw(url, chunked(text_body(), b"x: " + b"a" * 1000 + b"\r\n"))).startswith(b"HTTP/1.1 200 ")


async def test_trailers_without_end_behind_an_answer_get_no_second_one() -> None:
    async with public_side(max_header_bytes=2000, body_timeout_s=0.1) as url:
        kept_open = CHUNKED.replace(b"connection: close", b"x: y")
        answer = await raw(url, kept_open + b"0\r\n", b"", b"", *[b"a: " + b"a" * 600 + b"\r\n"] * 4, pause_s=0.1)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
async def test_a_body_behind_an_upgrade_is_no_second_request(protocol: bytes) -> None:
    """Java's HttpClient asks for h2c by default; what a proxy took for the body was answered as a request."""
    inside = b"GET /health HTTP/1.1\r\n\r\n"
    wish = b"host: x\r\nconnection: Upgrade\r\nupgrade: " + protocol
    asked = b"POST /v1/chat/completions HTTP/1.1\r\n%b\r\ncontent-length: %d\r\n\r\n" % (wish, len(inside))
    async with public_side() as url:
        answer = await raw(url, asked + inside)
        assert (answer[:13], answer.count(b"HTTP/1.1 ")) == (b"HTTP/1.1 400 ", 1)
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_request"


async def test_a_wish_for_another_protocol_without_a_body_is_overlooked() -> None:
    async with public_side() as url:
        wish = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close, Upgrade\r\nupgrade: h2c\r\n\r\n"
        assert (await raw(url, wish)).startswith(b"HTTP/1.1 200 ")


async def test_the_limits_of_a_head_are_not_those_of_what_follows() -> None:
    """Several requests over one connection, answers slower than a head may be, bodies larger than one."""
    limited = public_side(max_header_bytes=2000, header_timeout_s=1.0, itl_s=0.4)
    async with limited as url, aiohttp.ClientSession() as http:
        for _ in range(2):
            async with http.post(f"{url}/v1/chat/completions", data=text_body(user="x" * 300_000)) as response:
                assert (response.status, len(await response.read()) > 100) == (200, True)


async def test_what_is_no_http_is_answered_as_before() -> None:
    async with public_side() as url:
        assert (await raw(url, b"no http at all\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
