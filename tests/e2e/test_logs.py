"""No secret of a request ever reaches standard error or output of a server, whichever process fails on it."""

from __future__ import annotations

import base64
import io
import json
import re
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from opsin.testing.server_process import ServerProcess
from tests.corpus.bodies import content_body, image_body
from tests.corpus.pictures import chunk, data_url, encoded, scene, with_chunk

NEEDLE = "n33dle"
"""In everything that a client keeps to itself; nowhere else."""

KEY = f"sk-{NEEDLE}"
URL = f"https://{NEEDLE}:{NEEDLE}@{NEEDLE}.example/{NEEDLE}.png?token={NEEDLE}#{NEEDLE}"
SABOTAGE = str(Path(__file__).parent / "sabotage")  # its module must never be imported here
MAX_TOKENS_OF_A_BUG = 13
SIZE_OF_A_BUG = (13, 13)


def _picture(size: tuple[int, int] = (64, 48)) -> bytes:
    """A good PNG with the needle in a comment, so that neither its bytes nor its base64 may be told."""
    comment = chunk(b"tEXt", f"Comment\0{NEEDLE * 8}".encode())
    return with_chunk(encoded(scene(size=size), "PNG"), comment, after_pixels=False)


GOOD = data_url(_picture())
BROKEN = data_url(_picture()[:-40])
SECRETS = [
    NEEDLE.encode(),
    *(base64.b64encode((NEEDLE * 8).encode()[shift:])[4:12] for shift in range(3)),
    *(base64.b64encode(_picture())[at : at + 24] for at in (0, 40, 400)),
]


def _ask(text: str, url: str | None = None, **fields: Any) -> bytes:
    pictures = [{"type": "image_url", "image_url": {"url": url}}] if url else []
    content = [*pictures, {"type": "text", "text": f"{text} {NEEDLE}"}]
    return json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 4, **fields}).encode()


GOOD_BODIES = [_ask("Hello."), _ask("What is it?", GOOD), _ask("What is it?", GOOD, stream=True)]
BAD_BODIES = [
    f'{{"{NEEDLE}'.encode(),
    f'"{NEEDLE}"'.encode(),
    _ask("x", model=NEEDLE),
    _ask("x", temperature=NEEDLE),
    _ask("x", stop=[NEEDLE, {NEEDLE: NEEDLE}]),
    _ask("x", tools=[NEEDLE]),
    _ask("x", cache_salt=NEEDLE),
    _ask("x " * 40_000),
    content_body(NEEDLE, role=NEEDLE),
    content_body([{"type": NEEDLE, NEEDLE: NEEDLE}]),
    content_body([{"type": "video_url", "video_url": {"url": URL}}]),
    content_body([{"type": "text", "text": "x", "uuid": NEEDLE}]),
    content_body([{"type": "image_url", "image_url": {"url": GOOD, "detail": NEEDLE}}]),
    content_body([{"type": "image_url", "image_url": GOOD}], role="assistant"),
    *(image_body(url) for url in (URL, f"file:///home/{NEEDLE}/{NEEDLE}.png", f"ftp://{NEEDLE}", NEEDLE)),
    *(image_body(url) for url in (BROKEN, f"data:{NEEDLE},", f"data:image/png;base64,{NEEDLE}@@", data_url(b"n33dle"))),
    image_body(data_url(_picture() + b"n33dle" * 1_800_000)),
    json.dumps({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": GOOD}] * 40}]}).encode(),
]
BUGS = [
    _ask("sabotage the gateway"),
    _ask("sabotage the gateway", stream=True),
    _ask("x", max_tokens=MAX_TOKENS_OF_A_BUG),
    _ask("x", GOOD, max_tokens=MAX_TOKENS_OF_A_BUG, stream=True),
    _ask("x", data_url(_picture(SIZE_OF_A_BUG))),
]


class Seen:
    """What clients were answered."""

    def __init__(self) -> None:
        self.answers: dict[str, str] = {}  # request id → code of the error, or status

    async def post(self, http: aiohttp.ClientSession, url: str, body: bytes, **headers: str) -> int:
        """Sends a request whose every part holds the needle."""
        sent = {"authorization": f"Bearer {KEY}", "cookie": NEEDLE, "user-agent": NEEDLE, **headers}
        where = f"{url}/v1/chat/completions?key={NEEDLE}"
        async with http.post(where, data=io.BytesIO(body), headers=sent) as response:
            answer = await response.read()
            code = None
            if (start := answer.find(b'{"error":')) >= 0:
                error = json.loads(answer[start:])["error"]
                code = error["code"]
                assert NEEDLE not in error["message"] or code == "model_not_found"  # which names what was asked for
            self.answers[response.headers["x-request-id"]] = code or str(response.status)
            return response.status

    def check(self, server: ServerProcess, printed: str) -> None:
        """No secret in any line; one access line per answer, which says the same."""
        output = (server.log + printed).encode()
        assert [secret for secret in SECRETS if secret in output] == [], server.log
        lines = [line for line in server.lines if " opsin.gateway.exchange " in line]
        logged = [dict(re.findall(r"(\w+)=(\S+)", line)) for line in lines]
        assert set(Counter(line["request_id"] for line in logged).values()) <= {1}
        told = {line["request_id"]: line.get("code", line["status"]) for line in logged}
        assert {name: told.get(name) for name in self.answers} == self.answers


@pytest.fixture
def seen() -> Seen:
    return Seen()


def _lines_about(server: ServerProcess, words: str) -> Iterator[str]:
    return (line for line in server.lines if words in line)


def _bytes_written(server: ServerProcess) -> int:
    """To files, by the kernel's own count, of the processes that see whole requests; pipes and sockets are none."""
    if sys.platform != "linux":
        return 0
    return sum(process.io_counters().write_bytes for process in (server.gateway(), *server.engines()))


async def test_good_and_bad_requests(seen: Seen, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Nothing of them is in the log, and nothing of anything on disk: no file is written unless it is configured."""
    places = {name: str(tmp_path) for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME")}
    with ServerProcess("--log-level", "debug", "--api-key", KEY, environment=places) as server:
        url = server.until_ready()
        written_before = _bytes_written(server)
        async with aiohttp.ClientSession() as http:
            assert {await seen.post(http, url, body) for body in GOOD_BODIES} == {200}
            statuses = {await seen.post(http, url, body) for body in BAD_BODIES}
            assert statuses == {400, 404, 413, 415, 422}
            assert await seen.post(http, url, _ask("x"), authorization=f"Bearer wrong-{NEEDLE}") == 401
            assert await seen.post(http, url, _ask("x"), **{"content-encoding": NEEDLE}) == 400
            assert await seen.post(http, url, b"x" * (33 * 2**20)) == 413
            await _other_routes(http, url)
            await _leave(http, url)
        _garbage(url)
        assert _bytes_written(server) == written_before
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []  # noqa: ASYNC240 - torch makes a folder
    seen.check(server, capfd.readouterr().out)


async def _other_routes(http: aiohttp.ClientSession, url: str) -> None:
    for route in (f"/{NEEDLE}", f"/v1/models/{NEEDLE}", "/v1/models", "/metrics"):
        async with http.get(f"{url}{route}?q={NEEDLE}", headers={"authorization": NEEDLE}) as response:
            assert response.status in (401, 404)


async def _leave(http: aiohttp.ClientSession, url: str) -> None:
    """In the middle of an answer."""
    headers = {"authorization": f"Bearer {KEY}"}
    body = io.BytesIO(_ask("x", stream=True, max_tokens=500, ignore_eos=True))
    async with http.post(f"{url}/v1/chat/completions", data=body, headers=headers) as response:
        await response.content.readany()
        response.close()


def _garbage(url: str) -> None:
    """What is no HTTP at all."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(f"{NEEDLE}\r\n{NEEDLE}: {NEEDLE}\r\n\r\n".encode())
        assert b"400" in connection.recv(1000)


EXPECTED = {
    "none": [200, 200, 200],
    "before_first_token": [503, 503, 503],
    "mid_stream": [503, 503, 200],
    "out_of_memory": [503, 503, 503],
}


@pytest.mark.parametrize("failure", EXPECTED)
async def test_answers_and_failures_of_an_engine(failure: str, seen: Seen, capfd: pytest.CaptureFixture[str]) -> None:
    environment = {"OPSIN_FAKE__FAILURE": failure, "OPSIN_FAKE__TEXT": f"{NEEDLE} says {NEEDLE} again"}
    with ServerProcess("--engine", "fake", "--log-level", "debug", environment=environment) as server:
        url = server.until_ready()
        async with aiohttp.ClientSession() as http:
            statuses = [await seen.post(http, url, body) for body in GOOD_BODIES]
    assert statuses == EXPECTED[failure]
    seen.check(server, capfd.readouterr().out)


async def test_bugs_that_quote_what_they_work_on(seen: Seen, capfd: pytest.CaptureFixture[str]) -> None:
    environment = {"PYTHONPATH": SABOTAGE}
    with ServerProcess("--log-level", "debug", environment=environment) as server:
        url = server.until_ready()
        async with aiohttp.ClientSession() as http:
            statuses = [await seen.post(http, url, body) for body in BUGS]
            assert statuses == [500, 500, 500, 500, 422]
            assert await seen.post(http, url, _ask("sabotage a task")) == 200
            assert await seen.post(http, url, GOOD_BODIES[1]) == 200
            async with http.get(f"{url}/version", headers={"authorization": f"sabotage {NEEDLE}"}) as response:
                assert response.status == 500
                assert NEEDLE not in await response.text()
    seen.check(server, capfd.readouterr().out)
    bug = 'exception="ValueError at sabotage/sitecustomize.py:'
    for words, count in (
        ("event=internal_error", 3),
        ("Exception in ASGI application", 1),
        ("a bug failed", 2),
        (" uncaught exception", 1),
        ("uncaught in a thread", 1),
        ("Task exception was never retrieved", 1),
        (" asyncio Exception in", 1),
    ):
        lines = [*_lines_about(server, words)]
        assert len(lines) == count, (words, server.log)
        assert all(bug in line and "caused by KeyError" in line for line in lines), lines
