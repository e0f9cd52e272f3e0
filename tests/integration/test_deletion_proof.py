"""Hit before, miss after, and then every place is read through: Redis, the disk, and the keys of the engine's caches.

The engine runs in this process, so that what its caches hold can be listed; everything else is as served.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

from opsin.engine.local import engine
from opsin.tenants.key_file import KeyFile
from opsin.tenants.keys import new_key
from tests.corpus.pictures import encoded, scene
from tests.integration.gateways import Served, gateway
from tests.kept import everything, holding
from tests.redis_server import needs_redis, redis_server
from tests.worker_here import WorkerHere

pytestmark = needs_redis


class Tenant:
    """One tenant of a gateway, and everything that is kept of it, place by place."""

    def __init__(self, served: Served, key: str, name: str) -> None:
        self._served = served
        self._headers = {"authorization": f"Bearer {key}"}
        self._scopes = served.application.gateway.scopes
        self.scope = self._scopes.of(name)

    def record(self, data: bytes) -> str:
        return self._scopes.record(self.scope, hashlib.sha256(data).hexdigest())

    async def ask(self, part: dict[str, Any]) -> tuple[int, str]:
        """What the caches had of the picture."""
        body = {
            "messages": [{"role": "user", "content": [part, {"type": "text", "text": "What is it?"}]}],
            "max_tokens": 8,
        }
        url, headers = f"{self._served.url}/v1/chat/completions", {**self._headers, "x-opsin-cache": "1"}
        async with self._served.http.post(url, json=body, headers=headers) as response:
            await response.read()
            await self._served.application.caches.store.written()
            return response.status, response.headers.get("x-opsin-cache", "")

    async def upload(self, data: bytes) -> str:
        boundary = "b"
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nvision\r\n--{boundary}\r\n'
        head += 'Content-Disposition: form-data; name="file"; filename="p.png"\r\n\r\n'
        headers = {**self._headers, "content-type": f"multipart/form-data; boundary={boundary}"}
        form = head.encode() + data + f"\r\n--{boundary}--\r\n".encode()
        async with self._served.http.post(f"{self._served.url}/v1/files", data=form, headers=headers) as response:
            assert response.status == 200, await response.text()
            return (await response.json())["id"]

    async def delete(self, data: bytes) -> dict[str, str]:
        url = f"{self._served.url}/v1/media/{hashlib.sha256(data).hexdigest()}"
        async with self._served.http.delete(url, headers=self._headers) as response:
            return (await response.json())["tiers"]

    def in_engine(self) -> frozenset[str]:
        names = self._scopes.all_salted(self.scope)
        return frozenset[str]().union(
            *(WorkerHere.features.names(name) | WorkerHere.prefixes.names(name) for name in names)
        )


def inline(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(data).decode()}"}}


async def test_after_a_deletion_no_place_holds_anything_of_the_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "WorkerProcess", WorkerHere)
    torch.set_num_threads(1)
    doomed, other = (encoded(scene(size=(96, 64 + side)), "PNG") for side in (0, 32))
    keys = {name: new_key(name) for name in ("acme", "rival")}
    for _, one in keys.values():
        await KeyFile(tmp_path / "keys").add(one)
    folder, secret = tmp_path / "cache", tmp_path / "keys.secret"
    with redis_server() as redis:
        async with gateway(
            engine="local",
            local={"device": "cpu", "dtype": "float32", "num_threads": 1, "warm_up_s": 0},
            media={"render_workers": 1},
            gateway={"api_keys_file": str(tmp_path / "keys")},
            cache={"dir": str(folder), "redis_timeout_s": 20.0},
            redis_url=redis.url,
        ) as served:
            acme, rival = (Tenant(served, keys[name][0], name) for name in ("acme", "rival"))
            part = {"type": "image_url", "image_url": {"file_id": await acme.upload(doomed)}}
            assert "features=miss" in (await acme.ask(part))[1]
            assert "features=hit" in (await acme.ask(part))[1]
            after_doomed = acme.in_engine()
            await acme.ask(inline(other))
            await rival.ask(inline(doomed))
            of_rival, of_other = rival.in_engine(), acme.in_engine() - after_doomed
            digest = hashlib.sha256(doomed)
            needles = (doomed, digest.hexdigest().encode(), digest.digest(), acme.record(doomed).encode())
            there = everything(redis, folder, secret)
            assert any(name.startswith("opsin:f:") for name in holding(there, doomed)), "the scan finds its bytes"
            held = holding(there, *needles)
            assert any(name.startswith("opsin:f:") for name in held), "the upload"
            assert any(name.startswith("opsin:c:") for name in held), "what was made of it"
            assert any(name.startswith("values/") for name in held), "the same on the disk"
            assert acme.record(doomed) in after_doomed
            assert of_rival
            assert of_other
            assert not of_rival & (after_doomed | of_other)

            tiers = await acme.delete(doomed)
            assert tiers == dict.fromkeys(("memory", "disk", "redis", "files", "features"), "erased") | {
                "replicas": "none"
            }

            assert acme.in_engine() == of_other
            assert rival.in_engine() == of_rival
            left = everything(redis, folder, secret)
            assert holding(left, *needles[:3]) == []
            tombstones = [f"opsin:{tier}:{{{acme.scope}}}:dead:{acme.record(doomed)}" for tier in "cf"]
            told = "opsin:deletions"
            assert set(holding(left, needles[3])) <= {*tombstones, told}, "an HMAC, so that nothing brings it back"
            assert (await acme.ask(part))[0] == 404
            assert "features=miss" in (await acme.ask(inline(doomed)))[1]
            assert "features=hit" in (await rival.ask(inline(doomed)))[1]
            assert "features=hit" in (await acme.ask(inline(other)))[1]
