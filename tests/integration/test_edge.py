"""HTTPS, browsers, proxies and the metrics' own port, over real sockets with the fake engine."""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from opsin.app import build
from opsin.gateway.edge import metrics_app, public_app, server
from opsin.gateway.listener import Listener
from opsin.settings import load_settings
from opsin.testing.server_process import ServerProcess
from tests.certificates import certificate

PAGE = "https://page.example"


@asynccontextmanager
async def served(*, metrics: bool = False, **config: Any) -> AsyncGenerator[str]:
    """The public side, or the metrics' one; yields its URL."""
    settings = load_settings({"engine": "fake", "gateway": {"port": 0, **config}})
    application = build(settings)
    app = metrics_app(application.gateway) if metrics else public_app(application.gateway, settings.gateway)
    uvicorn = server(app, settings.gateway)
    uvicorn.port = 0
    listener = Listener(uvicorn)
    serving = asyncio.create_task(listener.serve())
    try:
        await application.start()
        await listener.listening.wait()
        scheme = "https" if settings.gateway.ssl_certfile else "http"
        yield f"{scheme}://127.0.0.1:{listener.port}"
    finally:
        listener.should_exit = True
        await serving
        await application.close()


async def get(url: str, **options: Any) -> tuple[int, str]:
    async with aiohttp.ClientSession() as http, http.get(url, **options) as response:
        return response.status, await response.text()


@pytest.mark.parametrize("password", [None, "geheim"])
async def test_https_with_a_certificate_of_its_own(tmp_path: Path, password: str | None) -> None:
    chain, key = certificate(tmp_path, *(("-passout", f"pass:{password}") if password else ()))
    trusting = ssl.create_default_context(cafile=str(chain))
    async with served(ssl_certfile=chain, ssl_keyfile=key, ssl_keyfile_password=password) as url:
        assert (await get(f"{url}/v1/models", ssl=trusting))[0] == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await get(f"{url}/v1/models")
        with pytest.raises(aiohttp.ClientError):  # plain HTTP on that port
            await get(url.replace("https", "http") + "/v1/models")


@pytest.mark.parametrize("allowed", [PAGE, "*"])
async def test_pages_of_an_allowed_origin_may_ask_and_read_the_headers(allowed: str) -> None:
    question = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    question["Access-Control-Request-Headers"] = "authorization,content-type,x-stainless-lang"
    async with served(allowed_origins=[allowed], api_key="k") as url, aiohttp.ClientSession() as http:
        async with http.options(f"{url}/v1/chat/completions", headers=question) as response:
            assert response.status == 200
            assert response.headers["access-control-allow-origin"] == allowed
            assert "POST" in response.headers["access-control-allow-methods"]
            assert "x-stainless-lang" in response.headers["access-control-allow-headers"]
        # The answer to a refused request can be read too, or the page could not say why.
        async with http.post(f"{url}/v1/chat/completions", headers={"Origin": PAGE}, json={}) as response:
            assert response.status == 401
            assert response.headers["access-control-allow-origin"] == allowed
            assert "x-request-id" in response.headers["access-control-expose-headers"]


@pytest.mark.parametrize("origins", [[], ["https://other.example"]])
async def test_other_pages_may_not(origins: list[str]) -> None:
    question = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    async with served(allowed_origins=origins) as url, aiohttp.ClientSession() as http:
        async with http.options(f"{url}/v1/chat/completions", headers=question) as response:
            assert "access-control-allow-origin" not in response.headers
        async with http.get(f"{url}/v1/models", headers={"Origin": PAGE}) as response:
            assert "access-control-allow-origin" not in response.headers


async def test_a_proxy_may_leave_the_path_on_or_take_it_off() -> None:
    async with served(root_path="/vlm") as url:
        for path in ("/v1/models", "/vlm/v1/models", "/vlm/v1/models/fake", "/vlm/health"):
            assert (await get(url + path))[0] == 200, path
        for path in ("/other/v1/models", "/vlmv1/models"):
            assert (await get(url + path))[0] == 404, path


async def test_metrics_of_their_own_port_need_no_key_and_are_alone() -> None:
    async with served(metrics=True, api_key="k") as url:
        status, text = await get(f"{url}/metrics")
        assert status == 200
        assert "opsin_num_requests_running" in text
        for path in ("/v1/models", "/docs", "/health"):
            assert (await get(url + path))[0] == 404, path
    async with served(api_key="k", metrics_port=0) as url:
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
