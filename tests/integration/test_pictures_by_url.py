"""Pictures that a request names: from a web server in this process, through the whole gateway."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from opsin.cli.flags import read
from opsin.cli.main import parse
from opsin.core.errors import ConfigError
from opsin.testing.scripted_dns import ScriptedDns
from opsin.testing.scripted_origin import Mode, ScriptedOrigin, answer, silence
from opsin.testing.scripted_upstream import ScriptedUpstream
from opsin.testing.scripted_upstream import serve as scripted
from tests.corpus.bodies import image_body
from tests.corpus.pictures import data_url, encoded, scene
from tests.integration.gateways import HOME, Served, fetching_from, gateway

PICTURES = [encoded(scene(size=(40 + 8 * number, 30)), "png") for number in range(4)]


@dataclass(frozen=True, slots=True)
class Scene:
    """A gateway and the web server that it may fetch from."""

    served: Served
    origin: ScriptedOrigin

    def url(self, path: str) -> str:
        return f"http://img.example:{self.origin.port}{path}"

    async def ask(self, *urls: str) -> tuple[int, dict[str, Any]]:
        """A request with these pictures."""
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        return await self.served.chat(messages=[{"role": "user", "content": parts}])


@asynccontextmanager
async def scenery(
    modes: dict[str, Mode], *, engine: dict[str, Any] | None = None, **fetch: Any
) -> AsyncGenerator[Scene]:
    origin = ScriptedOrigin(modes)
    async with origin.serve(HOME):
        media = fetching_from(origin, **fetch)
        dns = ScriptedDns({"img.example": [[HOME]]})
        async with gateway(media=media, lookup=dns, **(engine or {})) as served:
            yield Scene(served, origin)
        await origin.until_idle()


async def test_pictures_load_at_the_same_time_and_stay_in_order() -> None:
    """The server answers nobody before all three have asked."""
    asked = 0
    everybody = asyncio.Event()

    def mode(number: int) -> Mode:
        async def together(writer: asyncio.StreamWriter) -> None:
            nonlocal asked
            asked += 1
            if asked == 3:
                everybody.set()
            await everybody.wait()
            await answer(PICTURES[number])(writer)

        return together

    upstream = ScriptedUpstream()
    async with (
        scripted(upstream) as url,
        scenery(
            {f"/{number}.png": mode(number) for number in range(3)},
            engine={"engine": "upstream", "upstream": {"url": url}},
        ) as here,
    ):
        names = [here.url(f"/{number}.png") for number in (2, 0, 1)]
        status, body = await here.ask(names[0], data_url(PICTURES[3]), *names[1:])
        assert status == 200, body
        assert body["opsin"]["timeline"]["media_load_ms"] > 0
    sent = upstream.received[-1].body.decode()
    places = [sent.index(data_url(PICTURES[number])) for number in (2, 3, 0, 1)]
    assert places == sorted(places)


async def test_what_comes_with_the_request_is_judged_first() -> None:
    async with scenery({"/a.png": answer(PICTURES[0])}) as here:
        for wrong, code in (
            ("data:image/png;base64,!", "invalid_data_url"),
            ("http://other.example/", "media_url_blocked"),
            ("file:///etc/passwd", "media_url_blocked"),
        ):
            status, body = await here.ask(here.url("/a.png"), wrong)
            assert (status, body["error"]["code"]) == (400, code)
            assert body["error"]["param"] == "messages.0.content.1.image_url"
        assert here.origin.connections == 0


async def test_one_failure_ends_the_other_fetches() -> None:
    async with scenery({"/slow.png": silence}) as here:
        status, body = await here.ask(here.url("/slow.png"), here.url("/absent.png"))
        assert (status, body["error"]["code"]) == (400, "media_url_status")
        assert body["error"]["param"] == "messages.0.content.1.image_url"
        assert "404" in body["error"]["message"]
        await here.origin.until_idle()


async def test_limits_of_a_request() -> None:
    size = len(PICTURES[0])
    async with scenery(
        {"/a.png": answer(PICTURES[0])}, max_remote_images=2, max_bytes_per_request=2 * size - 1
    ) as here:
        url = here.url("/a.png")
        assert (await here.ask(url))[0] == 200
        status, body = await here.ask(url, url)
        assert (status, body["error"]["code"]) == (413, "media_too_large")
        before = here.origin.connections
        status, body = await here.ask(url, url, url)
        assert (status, body["error"]["code"]) == (400, "too_many_images")
        assert here.origin.connections == before


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_its_fetches(stream: bool) -> None:
    async with scenery({"/slow.png": silence}, first_byte_timeout_s=300, total_timeout_s=300) as here:
        body = image_body(here.url("/slow.png"))[:-1] + b', "stream": %s}' % (b"true" if stream else b"false")
        posting = asyncio.create_task(_post(here.served, body))
        async with asyncio.timeout(30):
            while not here.origin.open:  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.01)
        posting.cancel()
        await here.origin.until_idle()
        assert (await here.ask(data_url(PICTURES[0])))[0] == 200


async def test_eight_requests_for_one_new_url_fetch_it_once_and_the_first_may_leave() -> None:
    everybody = asyncio.Event()

    async def late(writer: asyncio.StreamWriter) -> None:
        await everybody.wait()
        await answer(PICTURES[0], cache_control="max-age=60")(writer)

    async with scenery({"/a.png": late}) as here:
        posting = [asyncio.create_task(_post(here.served, image_body(here.url("/a.png"))))]
        async with asyncio.timeout(30):
            while not here.origin.open:  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.01)
        asking = [asyncio.create_task(here.ask(here.url("/a.png"))) for _ in range(8)]
        admission = here.served.application.gateway.admission
        async with asyncio.timeout(30):
            while admission.in_progress < 9:  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.01)
        posting[0].cancel()
        async with asyncio.timeout(30):
            while admission.in_progress > 8:  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.01)
        everybody.set()
        assert [status for status, _ in await asyncio.gather(*asking)] == [200] * 8
        assert here.origin.connections == 1


async def _post(served: Served, body: bytes) -> None:
    async with served.http.post(f"{served.url}/v1/chat/completions", data=body) as response:
        await response.read()


async def test_a_wrong_picture_is_told_apart_from_a_wrong_fetch() -> None:
    modes = {"/page.html": answer(b"<!doctype html><title>x</title>"), "/cut.png": answer(PICTURES[0][:-20])}
    async with scenery(modes) as here:
        status, body = await here.ask(here.url("/page.html"))
        assert (status, body["error"]["code"]) == (415, "unsupported_image_format")
        assert "HTML" in body["error"]["message"]
        assert (await here.ask(here.url("/cut.png")))[0] == 422


async def test_a_url_is_logged_as_host_and_hash(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with scenery({}) as here:
        url = here.url("/absent.png?signature=secret")
        await here.ask(url, "http://u:p@secret-host.example/secret.png")
        await here.ask(url)
        await here.ask("https://img.example/secret\\x.png")
    told = [record.getMessage() for record in caplog.records if record.name == "opsin.media.fetch"]
    assert len(told) == 3
    assert f"host=img.example url={hashlib.sha256(url.encode()).hexdigest()[:12]} code=media_url_status" in told[1]
    assert not any("secret" in line or HOME in line or str(here.origin.port) in line for line in told)
    others = (
        record.getMessage() for record in caplog.records if not record.name.startswith(("asyncio", "aiohttp.access"))
    )
    assert not any("secret" in line for line in others)


def _words(host: str, port: int) -> list[str]:
    """Of the security page's server for pictures of one's own, with this host, this port and this machine's network."""
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    (line,) = (line for line in page.splitlines() if line.startswith("opsin serve") and "pictures.internal" in line)
    told = {"pictures.internal": host, "8080": str(port), "10.1.0.0/16": f"{HOME}/32"}
    return [told.get(word, word) for word in line.split()[2:]]


async def _told(words: list[str], url: str, dns: ScriptedDns) -> str:
    """What whoever starts it, or else a client, learns under the settings of this command line."""
    try:
        media = read(parse(["serve", *words])).checked().media
    except ConfigError as error:
        return error.message
    async with gateway(media=media.model_copy(update={"render_workers": 1}), lookup=dns) as served:
        parts = [{"type": "image_url", "image_url": {"url": url}}]
        status, body = await served.chat(messages=[{"role": "user", "content": parts}])
    return "ok" if status == 200 else body["error"]["message"]


@pytest.mark.parametrize(("host", "more"), [("pictures.internal", []), (HOME, ["--allow-ip-literals"])])
async def test_the_pages_flags_open_a_server_inside_and_each_is_needed(
    host: str, more: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    dns = ScriptedDns({"pictures.internal": [[HOME]]})
    origin = ScriptedOrigin({"/a.png": answer(PICTURES[0])})
    async with origin.serve(HOME):
        url, words = f"http://{host}:{origin.port}/a.png", [*_words(host, origin.port), *more]
        assert await _told(words, url, dns) == "ok"
        for at, flag in ((at, word) for at, word in enumerate(words) if word.startswith("--")):
            end = next((end for end in range(at + 1, len(words)) if words[end].startswith("--")), len(words))
            with caplog.at_level(logging.INFO, "opsin.media.fetch"):
                caplog.clear()
                told = await _told(words[:at] + words[end:], url, dns)
            if flag == "--allowed-private-networks":  # a client learns nothing of it
                assert flag not in told
                told = caplog.text
            assert flag in told


async def test_a_picture_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PICTURES[0])
    async with gateway(media={"allowed_local_media_path": tmp_path, "render_workers": 1}) as served:
        picture = {"type": "image_url", "image_url": {"url": f"file://{tmp_path}/a.png"}}
        status, body = await served.chat(messages=[{"role": "user", "content": [picture, picture]}])
        assert status == 200, body
