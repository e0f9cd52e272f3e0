"""Many tenants at one gateway: who gets in, how far, and in which order of refusals."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from opsin import tenancy
from opsin.cache.keys import Scopes
from opsin.settings import load_settings
from opsin.tenants.key_file import KeyFile
from opsin.tenants.key_redis import RedisKeys
from opsin.tenants.keys import Limits, new_key
from opsin.tenants.redis import connect
from tests.corpus.pictures import encoded, scene
from tests.integration.gateways import Served, gateway
from tests.redis_server import needs_redis, redis_server

WORDS = " ".join(["word"] * 200)
SLOW = {"text": WORDS, "itl_s": 0.05, "max_num_seqs": 2}


@dataclass
class Keys:
    """A file of keys, and the keys themselves by tenant."""

    path: Path
    of: dict[str, str] = field(default_factory=dict[str, str])
    ids: dict[str, str] = field(default_factory=dict[str, str])

    async def make(self, tenant: str, *, admin: bool = False, **limits: int) -> str:
        key, kept = new_key(tenant, admin=admin, limits=Limits(**limits))
        await KeyFile(self.path).add(kept)
        self.of[tenant], self.ids[tenant] = key, kept.id
        return key


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "keys")


def picture(side: int) -> bytes:
    return encoded(scene(size=(side, side)), "PNG")


def served_to(keys: Keys, **flags: Any) -> Any:
    settings = {"api_keys_file": str(keys.path), **flags.pop("gateway", {})}
    return gateway(gateway=settings, **flags)


@dataclass(frozen=True)
class Answer:
    status: int
    code: str | None
    headers: dict[str, str]


async def ask(served: Served, key: str, *pictures: bytes, **body: Any) -> Answer:
    urls = [f"data:image/png;base64,{base64.b64encode(one).decode()}" for one in pictures]
    content = [{"type": "text", "text": "What?"}, *({"type": "image_url", "image_url": {"url": url}} for url in urls)]
    fields = {"messages": [{"role": "user", "content": content}], **body}
    headers = {"authorization": f"Bearer {key}"}
    async with served.http.post(f"{served.url}/v1/chat/completions", json=fields, headers=headers) as response:
        headers = {name.lower(): value for name, value in response.headers.items()}
        told: dict[str, Any] = await response.json() if response.content_type == "application/json" else {}
        return Answer(response.status, told.get("error", {}).get("code"), headers)


async def get(served: Served, path: str, key: str) -> tuple[int, str]:
    async with served.http.get(f"{served.url}{path}", headers={"authorization": f"Bearer {key}"}) as response:
        return response.status, await response.text()


async def test_keys_open_what_is_theirs_and_all_refusals_are_alike(
    keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    acme, ops = await keys.make("acme"), await keys.make("ops", admin=True)
    async with served_to(keys) as served:
        assert (await ask(served, acme)).status == 200
        assert f"tenant=acme key={keys.ids['acme']}" in caplog.text
        assert acme not in caplog.text
        refused = [await get(served, "/v1/models", key) for key in ("", "sk-opsin-wrong", keys.ids["acme"])]
        assert len(set(refused)) == 1
        assert refused[0][0] == 401
        assert (await get(served, "/metrics", acme))[0] == 403
        assert "admin_key_needed" in (await get(served, "/metrics", acme))[1]
        assert (await get(served, "/metrics", ops))[0] == 200
        await KeyFile(keys.path).remove(keys.ids["acme"])
        late = await keys.make("late")
        await asyncio.sleep(1.05)  # the promise: a second at most
        assert await get(served, "/v1/models", acme) == refused[0]
        assert (await ask(served, late)).status == 200


async def test_metrics_tell_of_each_tenant_unless_everybody_may_read_them(keys: Keys) -> None:
    acme, ops = await keys.make("acme", requests_per_minute=1), await keys.make("ops", admin=True)
    async with served_to(keys, fake={"extra_image_tokens": 4}) as served:
        assert [(await ask(served, acme, picture(256))).status for _ in range(2)] == [200, 429]
        assert [(await get(served, f"/v1/files{path}", ops))[0] for path in ("", "/none")] == [200, 404]
        metrics = (await get(served, "/metrics", ops))[1]
    assert 'opsin_tenant_requests_total{code="ok",tenant="ops"} 1.0' in metrics
    assert 'opsin_tenant_requests_total{code="file_not_found",tenant="ops"} 1.0' in metrics
    assert 'opsin_tenant_requests_total{code="ok",tenant="acme"} 1.0' in metrics
    assert 'opsin_tenant_requests_total{code="rate_limit_exceeded",tenant="acme"} 1.0' in metrics
    assert 'opsin_tenant_image_tokens_total{tenant="acme"} 4.0' in metrics
    async with served_to(keys, gateway={"metrics_port": 9}) as served:
        await ask(served, ops)
        assert 'tenant="' not in (await get(served, "/metrics", ops))[1]


async def test_rotation_keeps_the_tenants_data_and_restarts_and_replicas_do_too(keys: Keys) -> None:
    sent = [await keys.make("acme"), await keys.make("acme"), await keys.make("other")]
    settings = load_settings({"engine": "fake", "gateway": {"api_keys_file": str(keys.path)}})
    starts: list[list[str]] = []
    for _ in range(2):
        auth, scopes = tenancy.auth(settings), Scopes(tenancy.server_secret(settings))
        await auth.start()
        starts.append([scopes.of((await auth.caller(f"Bearer {key}")).tenant) for key in sent])
    assert starts[0] == starts[1]
    old, new, other = starts[0]
    assert old == new != other


async def test_requests_in_a_minute_end_in_429_with_what_is_left(keys: Keys) -> None:
    key = await keys.make("acme", requests_per_minute=2)
    other = await keys.make("other")
    async with served_to(keys) as served:
        first, second, third = [await ask(served, key, max_tokens=2, stream=place == 1) for place in range(3)]
        assert [one.status for one in (first, second, third)] == [200, 200, 429]
        assert [one.headers["x-ratelimit-remaining-requests"] for one in (first, second, third)] == ["1", "0", "0"]
        assert {one.headers["x-ratelimit-limit-requests"] for one in (first, second, third)} == {"2"}
        assert third.code == "rate_limit_exceeded"
        assert third.headers["x-should-retry"] == "true"
        assert 1 <= int(third.headers["retry-after"]) <= 120
        assert third.headers["x-ratelimit-reset-requests"].endswith("s")
        free = await ask(served, other)
        assert free.status == 200
        assert not [name for name in free.headers if name.startswith("x-ratelimit")]


async def test_what_is_over_a_lower_limit_is_told_as_nothing_left(keys: Keys) -> None:
    """The limits of another key of the tenant, which has used more than they allow."""
    free = await keys.make("acme", requests_per_minute=9, image_tokens_per_minute=1000)
    slow, poor = await keys.make("acme", requests_per_minute=1), await keys.make("acme", image_tokens_per_minute=50)
    async with served_to(keys) as served:
        assert [(await ask(served, free, picture(256), max_tokens=1)).status for _ in range(2)] == [200, 200]
        for key, meter, limit in ((slow, "requests", "1"), (poor, "image-tokens", "50")):
            refused = await ask(served, key, picture(64))
            assert (refused.status, refused.code) == (429, "rate_limit_exceeded")
            assert refused.headers[f"x-ratelimit-limit-{meter}"] == limit
            assert refused.headers[f"x-ratelimit-remaining-{meter}"] == "0"
            assert refused.headers[f"x-ratelimit-reset-{meter}"].endswith("s")


async def test_pictures_are_counted_before_one_is_loaded_and_their_tokens_before_one_is_decoded(keys: Keys) -> None:
    """What is refused for its number would be refused otherwise for what it is, had anybody looked."""
    no_picture, good = b"no picture", picture(256)
    damaged = good.replace(good[len(good) // 2 :][:8], bytes(8))
    few = await keys.make("few", images_per_minute=1)
    poor = await keys.make("poor", image_tokens_per_minute=150)
    async with served_to(keys) as served:
        assert (await ask(served, few, no_picture)).status in (400, 415, 422)
        refused = await ask(served, few, no_picture)
        assert (refused.status, refused.code) == (429, "rate_limit_exceeded")
        assert refused.headers["x-ratelimit-remaining-images"] == "0"
        hopeless = await ask(served, few, no_picture, no_picture)
        assert (hopeless.status, hopeless.code) == (400, "too_many_images")
        assert hopeless.headers["x-should-retry"] == "false"

        assert (await ask(served, poor, damaged)).status == 422, "100 tokens, charged by the header"
        refused = await ask(served, poor, damaged)
        assert (refused.status, refused.code) == (429, "rate_limit_exceeded")
        assert refused.headers["x-ratelimit-limit-image-tokens"] == "150"
        assert int(refused.headers["x-ratelimit-remaining-image-tokens"]) == 50
        large = await ask(served, poor, picture(400))
        assert (large.status, large.code) == (400, "too_many_image_tokens")


async def test_a_tenants_own_places_are_refused_to_it_alone(keys: Keys) -> None:
    narrow = await keys.make("narrow", max_concurrency=1, max_queue=1)
    other = await keys.make("other")
    async with served_to(keys, fake=SLOW) as served:
        running = asyncio.create_task(ask(served, narrow, max_tokens=20))
        await served.until_running(1)
        waiting = asyncio.create_task(ask(served, narrow, max_tokens=2))
        while served.application.gateway.models.default.chat.waiting != 1:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.01)
        refused = await ask(served, narrow)
        assert (refused.status, refused.code) == (429, "too_many_in_progress")
        assert refused.headers["retry-after"] == "1"
        assert (await ask(served, other, max_tokens=2)).status == 200
        assert not waiting.done(), "the one place is still taken"
        assert [(await one).status for one in (running, waiting)] == [200, 200]


async def test_one_tenant_never_makes_the_server_full_for_others(keys: Keys) -> None:
    greedy, other = await keys.make("greedy"), await keys.make("other")
    async with served_to(keys, fake=SLOW, gateway={"max_requests": 8}) as served:
        flood = [asyncio.create_task(ask(served, greedy, max_tokens=10)) for _ in range(12)]
        await served.until_running(2)
        answered = await asyncio.gather(*(ask(served, other, max_tokens=2) for _ in range(2)))
        assert [one.status for one in answered] == [200, 200]
        statuses = [(await one).status for one in flood]
        assert statuses.count(200) == 4, "as many as were left free"
        assert statuses.count(429) == 8
    async with gateway(fake=SLOW, gateway={"max_requests": 2}) as served:
        flood = [asyncio.create_task(ask(served, "", max_tokens=10)) for _ in range(2)]
        await served.until_running(2)
        assert (await ask(served, "")).status == 503, "where there is but one tenant, the server is full"
        await asyncio.gather(*flood)


async def test_a_slot_comes_back_however_a_stream_ends(keys: Keys) -> None:
    key = await keys.make("acme")
    async with served_to(keys, fake=SLOW, gateway={"max_running": 1}) as served:
        for how in ("end", "leave", "leave while waiting"):
            fields = {"messages": [{"role": "user", "content": "?"}], "stream": True, "max_tokens": 3}
            if how != "end":
                fields["max_tokens"] = 200
            running = served.http.post(
                f"{served.url}/v1/chat/completions", json=fields, headers={"authorization": f"Bearer {key}"}
            )
            async with running as response:
                if how == "end":
                    assert (await response.read()).endswith(b"[DONE]\n\n")
                elif how == "leave":
                    await response.content.readany()
                else:
                    await response.content.readany()
                    waiting = asyncio.create_task(ask(served, key))
                    while served.application.gateway.models.default.chat.waiting != 1:  # noqa: ASYNC110 - nobody is told
                        await asyncio.sleep(0.01)
                    waiting.cancel()
            answer = await asyncio.wait_for(ask(served, key, max_tokens=1), 10)
            assert answer.status == 200
        assert served.application.gateway.models.default.chat.waiting == 0
        assert served.application.gateway.admission.in_progress == 0


@needs_redis
async def test_gateways_share_keys_and_limits_in_redis() -> None:
    with redis_server() as server:
        store = RedisKeys(connect(server.url))
        key, kept = new_key("acme", limits=Limits(requests_per_minute=2))
        await store.add(kept)
        flags: dict[str, Any] = {"redis_url": server.url, "gateway": {"api_keys_in_redis": True}}
        async with gateway(**flags) as one, gateway(**flags) as other:
            answers = [await ask(served, key, max_tokens=1) for served in (one, other, one, other)]
            assert [answer.status for answer in answers] == [200, 200, 429, 429]
            assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["1", "0", "0", "0"]
            server.stop()
            assert (await ask(one, key, max_tokens=1)).status == 200, "it counts alone, and knows the key"
        await store.close()
