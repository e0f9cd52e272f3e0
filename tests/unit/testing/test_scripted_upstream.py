"""The scripted upstream reads all of a large body, and no picture in it."""

from __future__ import annotations

import io
import json

import aiohttp
import pytest

from opsin.testing.script import Script
from opsin.testing.scripted_upstream import ScriptedUpstream, serve

TEXT = 'it is written ;base64,AAAA" and ;base64,\\'


def _body(picture: str) -> bytes:
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}
    content = [url, {"type": "text", "text": TEXT}, url]
    return json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": content}]}).encode()


@pytest.mark.parametrize("num_characters", [4, 400_000, 4_000_000])
async def test_a_body_with_pictures(num_characters: int) -> None:
    upstream, body = ScriptedUpstream(script=Script(echo=True)), _body("A" * num_characters)
    async with serve(upstream) as url, aiohttp.ClientSession(url) as session:
        async with session.post("/v1/chat/completions", data=io.BytesIO(body)) as response:
            assert response.status == 200
            lines = (await response.text()).split("\n\n")
        async with session.post("/v1/chat/completions", data=io.BytesIO(body[:-1])) as response:
            assert response.status == 400
    assert [received.body for received in upstream.received] == [body]
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    deltas = [choice["delta"].get("content") or "" for event in events for choice in event["choices"]]
    assert "".join(deltas) == TEXT


async def test_it_forgets_large_bodies_and_keeps_the_last() -> None:
    upstream, body = ScriptedUpstream(), _body("A" * 9_000_000)
    async with serve(upstream) as url, aiohttp.ClientSession(url) as session:
        for _ in range(3):
            async with session.post("/v1/chat/completions", data=io.BytesIO(body)) as response:
                await response.read()
    assert [len(received.body) for received in upstream.received] == [len(body)]
