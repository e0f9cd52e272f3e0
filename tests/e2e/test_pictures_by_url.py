"""The guarded fetch in the real command, on its own event loop and with the machine's own name service."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from opsin.cli.main import main
from opsin.testing.canary import Canary
from opsin.testing.scripted_origin import ScriptedOrigin, answer, redirect, silence, trickled_headers
from opsin.testing.server_process import ServerProcess
from tests.corpus.bodies import image_body
from tests.corpus.pictures import encoded, scene

HOME, FOREIGN = "127.0.0.1", "127.0.0.2"
PNG = encoded(scene(), "png")


async def ask(server: str, url: str) -> tuple[int, dict[str, Any]]:
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{server}/v1/chat/completions", data=image_body(url)) as response,
    ):
        return response.status, json.loads(await response.read())


async def test_the_flags_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    modes = {"/a.png": answer(PNG), "/headers": trickled_headers(0.05), "/silence": silence}
    origin = ScriptedOrigin(modes)
    with Canary(FOREIGN) as canary:
        modes["/redirect"] = redirect(f"http://{FOREIGN}:{canary.port}/")
        async with origin.serve(HOME):
            words = [
                *("--engine", "fake", "--allowed-local-media-path", str(tmp_path)),
                *("--allowed-media-domains", "localhost", FOREIGN, "--allow-plain-http", "--allow-ip-literals"),
                *("--allowed-private-networks", f"{HOME}/32", "::1/128"),
                *("--allowed-media-ports", str(origin.port), str(canary.port), "--max-media-redirects", "1"),
            ]
            environment = {
                "HTTP_PROXY": f"http://{FOREIGN}:{canary.port}",
                "OPSIN_MEDIA__FETCH__FIRST_BYTE_TIMEOUT_S": "0.5",
            }
            with ServerProcess(*words, environment=environment) as process:
                server = await asyncio.to_thread(process.until_ready)
                here = f"http://localhost:{origin.port}"
                expected = {
                    f"{here}/a.png": "ok",
                    f"file://{tmp_path}/a.png": "ok",
                    f"file://{tmp_path}/b.png": "media_url_blocked",
                    f"{here}/absent": "media_url_status",
                    f"{here}/headers": "media_url_timeout",
                    f"{here}/silence": "media_url_timeout",
                    f"{here}/redirect": "media_url_blocked",
                    f"http://{FOREIGN}:{canary.port}/": "media_url_blocked",
                    f"https://localhost:{origin.port}/": "media_url_timeout",
                    "http://localhost:1/": "media_url_blocked",
                }
                found = {url: await ask(server, url) for url in expected}
                await origin.until_idle()
            assert process.wait() == 0
        assert canary.hits == 0
    codes = {url: "ok" if status == 200 else body["error"]["code"] for url, (status, body) in found.items()}
    assert codes == expected
    assert str(tmp_path) not in process.log.split("serving", 1)[1]
    assert f"{origin.port}/" not in process.log
    assert FOREIGN + ":" not in process.log


@pytest.mark.parametrize("word", ["*", "https://a.example"])
def test_a_pattern_that_cannot_be_honoured_forbids_the_start(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--engine", "fake", "--allowed-media-domains", word]) == 1
    assert "--allowed-media-domains: should be a host" in capsys.readouterr().err
