"""What a client that asks is told of the caches, in the order of its pictures."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from opsin.tenants.key_file import KeyFile
from opsin.tenants.keys import Limits, new_key
from opsin.testing.scripted_dns import ScriptedDns
from opsin.testing.scripted_origin import ScriptedOrigin, answer
from tests.corpus.pictures import data_url, encoded, scene
from tests.integration.gateways import HOME, Served, fetching_from, gateway

HEADER = "x-opsin-cache"
PICTURES = [encoded(scene(size=(40 + 8 * number, 30)), "png") for number in range(2)]
ITEM = re.compile(r'(\d+);key="([0-9a-f]{16})"((?:;[a-z]+=[a-z][a-z-]*)*)')


async def told(served: Served, urls: Sequence[str], headers: dict[str, str], **fields: Any) -> str | None:
    """The header of an answer about these pictures."""
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    body = {"messages": [{"role": "user", "content": parts or "Hello."}], **fields}
    async with served.http.post(f"{served.url}/v1/chat/completions", json=body, headers=headers) as response:
        assert response.status == 200, await response.text()
        await response.read()
        return response.headers.get(HEADER)


def items(header: str | None) -> list[tuple[str, str]]:
    """Key and outcomes of each picture."""
    assert header is not None
    found = [ITEM.fullmatch(item) for item in header.split(", ")]
    assert [match and int(match[1]) for match in found] == list(range(len(found)))
    return [(match[2], match[3]) for match in found if match]


@pytest.mark.parametrize("stream", [False, True])
async def test_every_picture_is_told_in_order(stream: bool) -> None:
    origin = ScriptedOrigin({"/a.png": answer(PICTURES[0], cache_control="max-age=60")})
    async with (
        origin.serve(HOME),
        gateway(media=fetching_from(origin), lookup=ScriptedDns({"img.example": [[HOME]]})) as served,
    ):
        urls = [f"http://img.example:{origin.port}/a.png", data_url(PICTURES[1])]
        first = items(await told(served, urls, {HEADER: "1"}, stream=stream))
        assert [outcomes for _, outcomes in first] == [
            ";media=miss;render=miss;features=miss", ";render=miss;features=miss"
        ]  # fmt: skip
        # What the engine has need not be rendered, so nobody looks for that.
        again = items(await told(served, urls[::-1], {HEADER: "1"}, stream=stream))
        assert again == [(first[1][0], ";features=hit"), (first[0][0], ";media=hit-memory;features=hit")]


@pytest.mark.parametrize("reads", ["tokens", "messages"])
async def test_a_tenant_is_told_of_its_own_and_of_the_tier_that_had_it(reads: str, tmp_path: Path) -> None:
    """The second gateway has an engine that knows nothing, and the disk of the first one."""
    keys = {tenant: new_key(tenant, admin=False, limits=Limits()) for tenant in ("acme", "other")}
    for _, kept in keys.values():
        await KeyFile(tmp_path / "keys").add(kept)

    async def ask(served: Served, tenant: str) -> tuple[str, str]:
        headers = {HEADER: "1", "authorization": f"Bearer {keys[tenant][0]}"}
        (item,) = items(await told(served, [data_url(PICTURES[0])], headers))
        return item

    flags: dict[str, Any] = {
        "media": {"render_workers": 1},
        "fake": {"input": reads},
        "gateway": {"api_keys_file": str(tmp_path / "keys")},
        "cache": {"dir": str(tmp_path / "cache")},
    }
    async with gateway(**flags) as served:
        key, outcomes = await ask(served, "acme")
        assert outcomes == ";render=miss;features=miss"
        await served.application.caches.store.written()
    async with gateway(**flags) as served:
        others_key, outcomes = await ask(served, "other")
        assert outcomes == ";render=miss;features=miss"
        assert await ask(served, "acme") == (key, ";render=hit-disk;features=miss")
    assert len({key, others_key, hashlib.sha256(PICTURES[0]).hexdigest()[:16]}) == 3


async def test_only_who_asks_is_told_and_only_of_pictures() -> None:
    async with gateway(media={"render_workers": 1}) as served:
        pictures = [data_url(PICTURES[0])]
        assert await told(served, pictures, {}) is None
        assert await told(served, pictures, {HEADER: "0"}) is None
        assert await told(served, [], {HEADER: "1"}) is None
        assert await told(served, pictures, {HEADER: "1"}) is not None
