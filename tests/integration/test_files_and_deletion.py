"""Uploaded files as the official client sees them, and deletion that reaches every place, other gateways included."""

from __future__ import annotations

import asyncio
import hashlib
import io
import socket
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import openai
import pytest
from PIL import Image

from opsin.core.erasure import PurgeOutcome
from opsin.media import data_url
from opsin.tenants.key_file import KeyFile
from opsin.tenants.keys import Limits, new_key
from opsin.testing.scripted_upstream import ScriptedUpstream
from opsin.testing.scripted_upstream import serve as scripted
from tests.integration.gateways import Served, gateway
from tests.kept import everything, holding
from tests.redis_server import PROGRAM, RedisServer, redis_server, values_of

AS_FORM: Any = {"headers": {"content-type": "multipart/form-data"}}
PATIENT = {"redis_timeout_s": 20.0}


def png(red: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16), (red, 2, 3)).save(buffer, "PNG")
    return buffer.getvalue()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def client_of(served: Served, key: str = "any") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=key, max_retries=0)


@asynccontextmanager
async def asked(**flags: Any) -> AsyncGenerator[tuple[Served, openai.AsyncOpenAI]]:
    async with gateway(media={"render_workers": 1}, **flags) as served, client_of(served) as client:
        yield served, client


async def ask(client: openai.AsyncOpenAI, part: Any) -> str | None:
    answer = await client.chat.completions.create(model="fake", messages=[{"role": "user", "content": [part]}])
    return answer.choices[0].message.content


async def delete(served: Served, path: str) -> dict[str, Any]:
    async with served.http.delete(served.url + path) as response:
        assert response.status == 200
        return await response.json()


def lookups(served: Served, outcome: str, tier: str = "memory", kind: str = "verified") -> float:
    registry = served.application.gateway.metrics.registry
    labels = {"outcome": outcome, "tier": tier, "kind": kind}
    return registry.get_sample_value("opsin_cache_lookups_total", labels) or 0.0


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    if PROGRAM is None:
        pytest.skip("redis-server is not installed")
    with redis_server() as server:
        yield server


async def test_a_file_from_its_upload_to_its_end() -> None:
    data = png(1)
    async with asked() as (_, client):
        file = await client.files.create(file=("a/b.png", data), purpose="vision")
        assert (file.bytes, file.filename, file.purpose, file.status) == (len(data), "b.png", "vision", "processed")
        assert file.model_extra == {"sha256": sha256(data)}
        assert [one.id async for one in client.files.list()] == [file.id]
        assert await client.files.retrieve(file.id) == file
        assert (await client.files.content(file.id)).content == data
        shapes = (
            {"type": "image_url", "image_url": {"file_id": file.id}},
            {"type": "input_image", "file_id": file.id, "detail": "low"},
            {"type": "file", "file": {"file_id": file.id}},
            {"type": "image_url", "image_url": {"url": f"sha256:{sha256(data)}"}},
        )
        for part in shapes:
            assert await ask(client, part)
        gone = await client.files.delete(file.id)
        assert (gone.id, gone.deleted) == (file.id, True)
        for part in shapes:
            with pytest.raises(openai.NotFoundError) as caught:
                await ask(client, part)
            assert caught.value.code == "file_not_found"
            assert str(caught.value.param).startswith("messages.0.content.0.")
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(file.id)
        assert [one async for one in client.files.list()] == []


async def test_a_file_of_another_tenant_is_none() -> None:
    async with asked() as (served, client):
        file = await client.files.create(file=("p.png", png(2)), purpose="vision")
        scopes, shelf = served.application.gateway.scopes, served.application.gateway.eraser.files
        other = scopes.of("somebody else")
        assert await shelf.all(other) == []
        for lookup in (shelf.get(other, file.id), shelf.picture(other, sha256(png(2)))):
            with pytest.raises(Exception, match="no") as caught:
                await lookup
            assert getattr(caught.value, "code", None) == "file_not_found"


@pytest.mark.parametrize(
    ("form", "status", "code"),
    [
        ({"file": ("p.png", b"no picture"), "purpose": (None, "vision")}, 415, "unsupported_image_format"),
        ({"file": ("p.png", png(3)[:-20]), "purpose": (None, "vision")}, 422, None),
        ({"file": ("p.png", png(3)), "purpose": (None, "assistants")}, 400, "invalid_upload"),
        ({"purpose": (None, "vision")}, 400, "invalid_upload"),
        ({"file": ("p.png", png(3) + bytes(3000)), "purpose": (None, "vision")}, 413, None),
    ],
)
async def test_an_upload_that_is_none(form: Any, status: int, code: str | None) -> None:
    limits = {"max_image_bytes": 2000, "render_workers": 1}
    async with gateway(media=limits) as served, client_of(served) as client:
        with pytest.raises(openai.APIStatusError) as caught:
            await client.post("/files", cast_to=object, files=form, options=AS_FORM)
        assert caught.value.status_code == status
        assert code in (None, caught.value.code)
        assert [one async for one in client.files.list()] == []


FORM_HEAD = (
    b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nvision\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="p.png"\r\n\r\n'
)
AS_PIECES = {"content-type": "multipart/form-data; boundary=b"}


async def test_an_upload_without_an_end_is_refused_at_its_limit() -> None:
    sent = 0

    async def endless() -> AsyncGenerator[bytes]:
        nonlocal sent
        yield FORM_HEAD + png(1)
        while True:
            yield bytes(2**16)
            sent += 2**16
            await asyncio.sleep(0.005)

    async with gateway(media={"max_image_bytes": 2**20, "render_workers": 1}) as served, client_of(served) as client:
        async with served.http.post(f"{served.url}/v1/files", data=endless(), headers=AS_PIECES) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (413, "media_too_large")
        assert sent < 2**22, "what is in sockets' buffers, and no more"
        assert [one async for one in client.files.list()] == []


async def test_an_upload_that_breaks_off_leaves_nothing() -> None:
    async with asked() as (served, client):
        admission, port = served.application.gateway.admission, int(served.url.rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        head = "POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in AS_PIECES.items()) + "\r\n"
        writer.write(head.encode() + FORM_HEAD + png(1) + bytes(1000))
        async with asyncio.timeout(30):
            while not admission.in_progress:  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.01)
        writer.close()
        async with asyncio.timeout(30):
            while admission.in_progress:  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.01)
        assert [one async for one in client.files.list()] == []
        assert lookups(served, "miss") == 0, "nothing was decoded"


async def test_a_damaged_upload_digs_nothing_up() -> None:
    cut = png(3)[:-20]
    async with asked() as (served, client):
        await delete(served, f"/v1/media/{sha256(cut)}")
        with pytest.raises(openai.APIStatusError):
            await client.files.create(file=("p.png", cut), purpose="vision")
        scope = served.application.gateway.scopes.of("anonymous")
        record = served.application.gateway.scopes.record(scope, sha256(cut))
        assert served.application.caches.tombstones.covers(scope, record)


async def test_uploads_and_deletions_of_one_picture_at_once_leave_whole_files_only() -> None:
    data = png(40)
    async with asked() as (served, client):

        async def upload() -> None:
            await client.files.create(file=("p.png", data), purpose="vision")

        async def remove() -> None:
            for one in (await client.files.list()).data:
                with suppress(openai.NotFoundError):
                    await client.files.delete(one.id)

        async def purge() -> None:
            await delete(served, f"/v1/media/{sha256(data)}")

        for turn in range(6):
            await asyncio.gather(*(work() for work in (upload, remove, upload, purge, upload, remove)[turn % 3 :]))
            for one in (await client.files.list()).data:
                assert (await client.files.content(one.id)).content == data
        await purge()
        assert [one async for one in client.files.list()] == []


async def test_a_full_tenant_is_refused_and_keeps_what_it_has() -> None:
    async with asked(cache={"max_file_bytes_per_tenant": 300}) as (_, client):
        first = await client.files.create(file=("1.png", png(4)), purpose="vision")
        with pytest.raises(openai.APIStatusError) as caught:
            for red in range(5, 12):
                await client.files.create(file=("2.png", png(red)), purpose="vision")
        assert (caught.value.status_code, caught.value.code) == (413, "file_quota_exceeded")
        assert (await client.files.content(first.id)).content == png(4)


async def test_a_tenant_has_so_many_files_and_no_more() -> None:
    async with asked(cache={"max_files_per_tenant": 2}) as (_, client):
        first, _ = [await client.files.create(file=("p.png", png(4)), purpose="vision") for _ in range(2)]
        with pytest.raises(openai.APIStatusError, match="has 2 files; the limit is 2") as caught:
            await client.files.create(file=("p.png", png(5)), purpose="vision")
        assert (caught.value.status_code, caught.value.code) == (413, "file_quota_exceeded")
        await client.files.delete(first.id)
        await client.files.create(file=("p.png", png(5)), purpose="vision")


async def test_a_second_file_of_a_picture_shortens_nothing_and_outlives_nothing() -> None:
    data, seconds = png(41), 2
    form: Any = {"file": ("p.png", data), "purpose": (None, "vision"), "expires_after[seconds]": (None, str(seconds))}
    by_digest = {"type": "image_url", "image_url": {"url": f"sha256:{sha256(data)}"}}
    async with asked() as (_, client):
        long = await client.files.create(file=("p.png", data), purpose="vision")
        await client.post("/files", cast_to=object, files=form, options=AS_FORM)
        await asyncio.sleep(seconds + 0.2)
        assert [one.id for one in (await client.files.list()).data] == [long.id]
        assert (await client.files.content(long.id)).content == data
        await client.post("/files", cast_to=object, files=form, options=AS_FORM)
        await client.files.delete(long.id)
        assert await ask(client, by_digest)
        await asyncio.sleep(seconds + 0.2)
        with pytest.raises(openai.NotFoundError):
            await ask(client, by_digest)


async def test_files_count_as_requests_and_leave_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    key, kept = new_key("acme", limits=Limits(requests_per_minute=3))
    await KeyFile(tmp_path / "keys").add(kept)
    async with gateway(gateway={"api_keys_file": str(tmp_path / "keys")}) as served, client_of(served, key) as client:
        file = await client.files.create(file=("p.png", png(1)), purpose="vision")
        listed = await client.files.with_raw_response.list()
        assert listed.headers["x-ratelimit-remaining-requests"] == "1"
        await client.files.delete(file.id)
        with pytest.raises(openai.RateLimitError) as caught:
            await client.files.delete(file.id)
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert caught.value.response.headers["x-ratelimit-remaining-requests"] == "0"
    for told in ("POST /v1/files", "GET /v1/files", "DELETE /v1/files/{id}"):
        (line,) = [line for line in caplog.messages if f'route="{told}" status=200' in line]
        assert f"tenant=acme key={kept.id}" in line
    assert 'route="DELETE /v1/files/{id}" status=429 code=rate_limit_exceeded' in caplog.text
    assert file.id not in "".join(line for line in caplog.messages if "route=" in line)


async def test_a_deletion_leaves_what_became_of_it_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    keys = KeyFile(tmp_path / "keys")
    acme, kept = new_key("acme")
    ops, of_ops = new_key("ops", admin=True)
    await keys.add(kept)
    await keys.add(of_ops)
    route = 'route="DELETE /v1/tenants/{tenant}/media"'
    async with gateway(gateway={"api_keys_file": str(tmp_path / "keys")}) as served, client_of(served, acme) as client:
        await client.files.create(file=("p.png", png(1)), purpose="vision")
        for key, status in ((acme, 403), (ops, 200)):
            headers = {"authorization": f"Bearer {key}"}
            async with served.http.delete(f"{served.url}/v1/tenants/acme/media", headers=headers) as response:
                assert response.status == status
    refused, done = (line for line in caplog.messages if route in line)
    assert f"tenant=acme key={kept.id} {route} status=403 code=" in refused
    assert "tiers=" not in refused
    assert f"tenant=ops key={of_ops.id} {route} status=200 deleted_of=acme tiers=" in done
    assert "files:erased" in done


async def test_who_does_not_read_a_file_holds_a_place_and_not_for_ever() -> None:
    buffer, line = io.BytesIO(), socket.socket()
    Image.new("L", (3000, 3000)).save(buffer, "PNG", compress_level=0)  # more than the kernel takes
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    async with asked(gateway={"max_requests": 1, "request_timeout_s": 2.0}) as (served, client):
        file = await client.files.create(file=("p.png", buffer.getvalue()), purpose="vision")
        admission = served.application.gateway.admission
        line.connect(("127.0.0.1", int(served.url.rpartition(":")[2])))
        reader, writer = await asyncio.open_connection(sock=line, limit=1024)
        try:
            writer.write(f"GET /v1/files/{file.id}/content HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            await reader.readexactly(12)
            with pytest.raises(openai.InternalServerError) as caught:
                await client.files.list()
            assert (caught.value.status_code, caught.value.response.headers["retry-after"]) == (503, "1")
            async with asyncio.timeout(30):
                while admission.in_progress:  # noqa: ASYNC110 - nobody is told
                    await asyncio.sleep(0.05)
        finally:
            writer.close()
        assert (await client.files.content(file.id)).content == buffer.getvalue()


async def test_two_files_of_one_picture_end_one_by_one() -> None:
    async with asked() as (_, client):
        one, two = [await client.files.create(file=("p.png", png(5)), purpose="vision") for _ in range(2)]
        await client.files.delete(one.id)
        assert (await client.files.content(two.id)).content == png(5)
        await client.files.delete(two.id)
        with pytest.raises(openai.NotFoundError):
            await ask(client, {"type": "image_url", "image_url": {"url": f"sha256:{sha256(png(5))}"}})


async def test_hit_before_and_miss_after_and_nothing_left_anywhere(tmp_path: Path, redis: RedisServer) -> None:
    data = png(6)
    folder, secret = tmp_path / "cache", tmp_path / "secret"
    needles = (data, sha256(data).encode(), hashlib.sha256(data).digest(), b"a-name-of-mine.png")

    def places() -> tuple[list[str], list[str]]:
        there = everything(redis, folder, secret)
        return holding(there, *needles), [name for name in there if "values/" in name]

    keep: dict[str, Any] = {"cache": {"dir": str(folder), **PATIENT}, "gateway": {"server_secret_file": str(secret)}}
    async with asked(redis_url=redis.url, **keep) as (served, client):
        file = await client.files.create(file=("a-name-of-mine.png", data), purpose="vision")
        part = {"type": "image_url", "image_url": {"file_id": file.id}}
        await ask(client, part)
        await served.application.caches.store.written()
        assert lookups(served, "hit") == 1
        assert all(places()), "the scan has to find it while it is there"
        with redis.client() as client_of_redis:
            dump = b"".join(part for key in client_of_redis.scan_iter() for part in values_of(client_of_redis, key))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType, reportUnknownVariableType] its stub has none
        dump += b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
        assert not any(needle in dump for needle in needles), "who has no secret has no picture, digest or name"
        answer = await delete(served, f"/v1/media/{sha256(data)}")
        assert answer["tiers"] == {
            "memory": "erased", "disk": "erased", "redis": "erased", "files": "erased", "features": "erased",
            "replicas": "none",
        }  # fmt: skip
        assert answer["deleted"] is True
        assert places() == ([], [])
        with pytest.raises(openai.NotFoundError):
            await ask(client, part)
        again = await delete(served, f"/v1/media/{sha256(data)}")
        assert set(again["tiers"].values()) == {"none"}


async def test_a_picture_is_deleted_by_its_digest_in_either_form() -> None:
    async with asked() as (served, client):
        for before in ("", "sha256:"):
            await client.files.create(file=("p.png", png(7)), purpose="vision")
            answer = await delete(served, f"/v1/media/{before}{sha256(png(7))}")
            assert (answer["tiers"]["files"], answer["sha256"]) == (PurgeOutcome.ERASED, sha256(png(7)))
        for wrong in ("sha256:", f"sha256:{'0' * 63}", f"md5:{'0' * 64}", f"sha256:sha256:{'0' * 64}", "A" * 64):
            async with served.http.delete(f"{served.url}/v1/media/{wrong}") as response:
                error = (await response.json())["error"]
                assert (response.status, error["code"], error["param"]) == (400, "invalid_digest", "sha256"), wrong


async def test_what_one_gateway_deletes_while_another_is_cut_off_is_gone_there_when_it_is_back(
    redis: RedisServer,
    tmp_path: Path,
) -> None:
    data, path = png(7), f"/v1/media/{sha256(png(7))}"
    shared: dict[str, Any] = {"cache": PATIENT, "gateway": {"server_secret_file": str(tmp_path / "secret")}}
    with tempfile.TemporaryDirectory(prefix="cable-") as folder:
        cable = Cable(redis.url, Path(folder) / "cable.sock")
        await cable.mend()
        async with (
            asked(redis_url=redis.url, **shared) as (one, client),
            asked(redis_url=cable.url, **shared) as (two, other),
        ):
            await found_in_memory(one, client, data)
            await found_in_memory(two, other, data)
            assert await found_in_memory(two, other, data)
            await until_replicas(redis, 2)
            await cable.cut()
            answer = await delete(one, path)
            assert (answer["tiers"]["replicas"], answer["deleted"]) == ("unreachable", False)
            assert await found_in_memory(two, other, data), "it does not know yet"
            await cable.mend()
            async with asyncio.timeout(60):
                while await found_in_memory(two, other, data):  # noqa: ASYNC110 - nobody is told
                    await asyncio.sleep(0.05)
            scope = two.application.gateway.scopes.of("anonymous")
            record = two.application.gateway.scopes.record(scope, sha256(data))
            assert two.application.caches.tombstones.covers(scope, record)
            assert (await delete(one, path))["tiers"]["replicas"] == "erased"
        await cable.cut()


async def test_beside_a_gateway_of_another_secret_nothing_is_called_deleted(
    redis: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, secret = png(11), tmp_path / "secret"
    stated: dict[str, Any] = {"cache": PATIENT, "gateway": {"server_secret_file": str(secret)}}
    async with asked(redis_url=redis.url, cache=PATIENT) as (two, other):
        async with asked(redis_url=redis.url, **stated) as (one, client):
            kept = await client.files.create(file=("p.png", data), purpose="vision")
            doomed = await other.files.create(file=("p.png", data), purpose="vision")
            await until_replicas(redis, 2)
            for path in (f"/v1/files/{doomed.id}", f"/v1/media/{sha256(data)}", "/v1/tenants/anonymous/media"):
                answer = await delete(two, path)
                assert (answer["tiers"]["replicas"], answer["deleted"]) == ("unreachable", False), path
            assert "event=deletion_not_understood gateways=1" in caplog.text
            assert "same --server-secret-file" in caplog.text
            assert (await client.files.content(kept.id)).content == data
            answer = await delete(one, f"/v1/media/{sha256(data)}")
            assert (answer["tiers"]["replicas"], answer["deleted"]) == ("unreachable", False)
            with redis.client() as client_of_redis:
                said = b"".join(values_of(client_of_redis, b"opsin:replicas"))
            text = secret.read_text().strip()
            assert not any(key.encode() in said for key in (text, hashlib.sha256(bytes.fromhex(text)).hexdigest()))
        answer = await delete(two, f"/v1/media/{sha256(data)}")
        assert (answer["tiers"]["replicas"], answer["deleted"]) == ("none", True), "it is alone now"


async def until_replicas(redis: RedisServer, count: int) -> None:
    with redis.client() as client:
        async with asyncio.timeout(60):
            while client.hlen("opsin:replicas") != count:  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.02)


class Cable:
    """Between one gateway and Redis; can be cut and mended."""

    def __init__(self, to: str, at: Path) -> None:
        self.url = f"unix://{at}"
        self._to, self._at = to.removeprefix("unix://"), at
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def mend(self) -> None:
        self._server = await asyncio.start_unix_server(self._connected, str(self._at))

    async def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        self._at.unlink(missing_ok=True)
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, questions = await asyncio.open_unix_connection(self._to)
        self._writers += [writer, questions]
        await asyncio.gather(_pass_on(reader, questions), _pass_on(answers, writer), return_exceptions=True)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(2**16):
        writer.write(data)
    writer.close()


async def found_in_memory(served: Served, client: openai.AsyncOpenAI, data: bytes) -> bool:
    """In the tier or in the engine, by their metrics."""
    before = hits(served)
    await ask(client, {"type": "image_url", "image_url": {"url": data_url.write("image/png", data)}})
    return hits(served) > before


def hits(served: Served) -> float:
    registry = served.application.gateway.metrics.registry
    return lookups(served, "hit") + (registry.get_sample_value("vlm_image_cache_hits_total") or 0.0)


async def test_an_upstream_that_keeps_what_it_cannot_delete_gets_another_salt() -> None:
    async with scripted(ScriptedUpstream()) as url, asked(upstream={"url": url}, engine="upstream") as (served, _):
        scopes = served.application.gateway.scopes
        scope = scopes.of("anonymous")
        before = scopes.salted(scope)
        answer = await delete(served, f"/v1/media/{'0' * 64}")
        assert (answer["tiers"]["upstream"], answer["deleted"]) == (PurgeOutcome.UNREACHABLE, False)
        assert scopes.salted(scope) != before
        assert scopes.salted(scopes.of("somebody else")) == scopes.salted(scopes.of("somebody else"))


async def test_an_admin_deletes_all_of_a_tenant() -> None:
    async with asked() as (served, client):
        files = [await client.files.create(file=("p.png", png(red)), purpose="vision") for red in (8, 9)]
        answer = await delete(served, "/v1/tenants/anonymous/media")
        assert (answer["tiers"]["files"], answer["tenant"]) == ("erased", "anonymous")
        for file in files:
            with pytest.raises(openai.NotFoundError):
                await client.files.retrieve(file.id)
        await client.files.create(file=("p.png", png(8)), purpose="vision")
        assert len([one async for one in client.files.list()]) == 1
