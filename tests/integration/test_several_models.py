"""One gateway, several models: found by name, each with its own limits and engine, changed while requests run."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from opsin.cli.reloader import Reloader
from opsin.settings import configuration
from opsin.testing.script import Script
from opsin.testing.scripted_upstream import ScriptedUpstream, serve
from tests.corpus.pictures import data_url, idat, ihdr, png
from tests.integration.gateways import Served, gateway


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


PICTURE = {"type": "image_url", "image_url": {"url": data_url(png(ihdr(2, 2), idat([bytes(6)] * 2)))}}
MEDIA = {"render_workers": 1}


async def of(served: Served, path: str) -> tuple[int, Any]:
    async with served.http.get(f"{served.url}{path}") as response:
        return response.status, await response.json()


async def test_requests_go_by_name_each_model_by_its_own_rules() -> None:
    upstream = ScriptedUpstream(script=Script(text="From upstream."))
    async with serve(upstream) as url:
        models = [
            {"name": "one", "aliases": ["uno"], "upstream": {"url": url}, "max_model_len": 300},
            {"name": "two", "engine": "fake", "limit_mm_per_prompt": {"image": 1}, "fake": {"text": "From the fake."}},
        ]
        async with gateway(engine="local", models=models, media=MEDIA) as served:
            _, listed = await of(served, "/v1/models")
            assert [(one["id"], one["max_model_len"]) for one in listed["data"]] == [
                ("one", 300), ("uno", 300), ("two", None),
            ]  # fmt: skip
            for name, model, text in ((None, "one", "upstream"), ("uno", "uno", "upstream"), ("two", "two", "fake")):
                status, body = await served.chat(**({"model": name} if name else {}), unknown_field=1)
                assert status == 200
                assert body["model"] == model
                assert text in body["choices"][0]["message"]["content"]
            assert [b"unknown_field" in one.body for one in upstream.received] == [True, True]
            tools = [{"type": "function", "function": {"name": "f"}}]
            assert (await served.chat(model="one", tools=tools))[0] == 200
            assert (await served.chat(model="two", tools=tools))[0] == 400
            content = [PICTURE, PICTURE, {"type": "text", "text": "What?"}]
            messages = [{"role": "user", "content": content}]
            assert (await served.chat(model="one", messages=messages))[0] == 200
            status, body = await served.chat(model="two", messages=messages)
            assert (status, body["error"]["code"]) == (400, "too_many_images")
            status, body = await served.chat(model="three")
            assert (status, body["error"]["code"]) == (404, "model_not_found")
            assert body["error"]["message"] == "the model `three` does not exist here; served: one, uno, two"
            assert f"`{'x' * 100}…`" in (await served.chat(model="x" * 5000))[1]["error"]["message"]
            assert (await of(served, "/v1/models/uno"))[1]["id"] == "uno"
            status, ready = await of(served, "/ready")
            assert (status, ready["models"]) == (200, {"one": "ready", "two": "ready"})


async def test_ready_while_one_model_is() -> None:
    async with serve(ScriptedUpstream()) as there:
        upstream = {"url": there, "health_interval_s": 0.05}
        dying = ScriptedUpstream()
        async with serve(dying, grace_s=0) as url:
            models = [{"name": "a", "upstream": {**upstream, "url": url}}, {"name": "b", "upstream": upstream}]
            async with gateway(engine="local", models=models, media=MEDIA) as served:
                dying.loading = True

                async def is_seen() -> bool:
                    return (await of(served, "/ready"))[1]["models"]["a"] != "ready"

                await until(is_seen)
                assert (await of(served, "/ready"))[0] == 200
                assert (await served.chat(model="a"))[0] == 503
                assert (await served.chat(model="b"))[0] == 200


@asynccontextmanager
async def reloadable(text: str) -> AsyncGenerator[tuple[Served, Callable[[str], Awaitable[None]]]]:
    """A gateway by a file, and what changes the file and reloads it."""
    write(text)
    started = asyncio.create_task(asyncio.sleep(0, True))
    async with gateway(engine="local", models=configuration({}).checked().model_dump()["models"]) as served:
        reloader = Reloader(served.application, lambda: configuration({}), started)

        async def reload(text: str) -> None:
            write(text)
            reloader.reload_soon()
            await reloader.settled()

        yield served, reload
        await reloader.close()


def write(text: str) -> None:
    Path("opsin.toml").write_text(text)


def table(name: str, *urls: str, draining: str = "") -> str:
    drains = f", draining = {json.dumps([draining])}" if draining else ""
    return f'[[models]]\nname = "{name}"\nupstream = {{ url = {json.dumps(urls)}{drains}, ready_timeout_s = 0 }}\n'


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.01)


async def test_a_reload_drops_no_request(caplog: pytest.LogCaptureFixture) -> None:
    slow = ScriptedUpstream(script=Script(text="slow but whole", itl_s=0.1))
    quick = ScriptedUpstream(script=Script(text="quick"))
    async with (
        serve(slow) as old,
        serve(quick) as new,
        reloadable(table("a", old) + table("gone", old)) as (served, reload),
    ):
        running = [asyncio.create_task(served.chat(model=name)) for name in ("a", "gone", "a")]

        async def all_begun() -> bool:
            return len(slow.received) == 3

        await until(all_begun)
        await reload("log_level = 'debug'\n" + table("a", old, new, draining=old) + table("b", new))
        assert [one["id"] for one in (await of(served, "/v1/models"))[1]["data"]] == ["a", "b"]

        async def has_joined() -> bool:
            return (await served.chat(model="a"))[0] == 200

        await until(has_joined)
        assert (await served.chat(model="gone"))[0] == 404
        assert (await served.chat(model="b"))[0] == 200
        await reload(table("a", new))
        for status, body in await asyncio.gather(*running):
            assert (status, body["choices"][0]["message"]["content"]) == (200, "slow but whole")
        assert len(slow.received) == 3
    assert "not changed, as it needs a restart: log_level" in caplog.text


async def test_a_newer_reload_takes_the_place_of_one_that_waits(caplog: pytest.LogCaptureFixture) -> None:
    patient = table("b", "http://127.0.0.1:9").replace("ready_timeout_s = 0", "ready_timeout_s = 600")
    with caplog.at_level(logging.INFO):
        async with serve(ScriptedUpstream()) as url, reloadable(table("a", url)) as (served, reload):
            waiting = asyncio.ensure_future(reload(table("a", url) + patient))

            async def waits() -> bool:
                return "waiting for the upstream at 127.0.0.1:9" in caplog.text

            await until(waits)
            await reload(table("c", url))
            await waiting
            assert [one["id"] for one in (await of(served, "/v1/models"))[1]["data"]] == ["c"]
    assert "the one in progress is given up for a newer one" in caplog.text
    assert "event=reloaded begun=c ended=a serves=c" in caplog.text


async def test_a_reload_that_cannot_be_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with serve(ScriptedUpstream()) as url, reloadable(table("a", url)) as (served, reload):
        for wrong in ("[[models]]\nname = 3", "not TOML", table("b", "http://127.0.0.1:9")):
            caplog.clear()
            await reload(wrong)
            assert "reload:" in caplog.text
            assert (await served.chat(model="a"))[0] == 200
