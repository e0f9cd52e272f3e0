"""``POST /v1/tokens``: the same doors and errors as a chat, no engine, and little of pictures by URL."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from opsin.gateway.auth import Caller
from opsin.testing.scripted_dns import ScriptedDns
from opsin.testing.scripted_origin import Mode, ScriptedOrigin, answer, endless_body, raw, redirect
from tests.corpus.bodies import bad_bodies, content_body, image_body, text_body
from tests.corpus.pictures import chunk, data_url, encoded, exif_block, scene, segment, with_chunk
from tests.integration.gateways import HOME, Served, fetching_from, gateway

SIZE = (1200, 700)
FIRST = 2**16
SECOND = 2**20


async def tokens(served: Served, body: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
    async with served.http.post(f"{served.url}/v1/tokens", data=io.BytesIO(body), headers=headers) as response:
        return response.status, await response.json()


@asynccontextmanager
async def counting(**flags: Any) -> AsyncGenerator[Served]:
    """The demo model's gateway, whose engine never starts."""
    async with gateway(engine="local", started=False, **flags) as served:
        yield served


async def test_a_body_that_is_wrong_gets_the_error_of_a_chat() -> None:
    """Only for its size it is not refused: then the same error is part of the answer."""
    async with counting() as served:
        for bad in bad_bodies():
            status, body = await tokens(served, bad.body)
            if status == 200:
                assert body["fits"] is False, bad.name
                assert body["refusal"]["code"] == bad.code, bad.name
                assert bad.name.startswith("context_")
            else:
                assert (status, body["error"]["code"]) == (bad.status, bad.code), bad.name


async def test_the_key_and_the_number_of_requests_are_those_of_a_chat() -> None:
    async with gateway(gateway={"api_key": "secret", "max_requests": 1}) as served:
        assert (await tokens(served, image_body(data_url(encoded(scene(), "png")))))[0] == 401
        key = {"Authorization": "Bearer secret"}
        with served.application.gateway.admission.admit(Caller("test")):
            assert (await tokens(served, content_body("Hi"), **key))[0] == 503
        assert (await tokens(served, content_body("Hi"), **key))[0] == 200
        async with served.http.get(f"{served.url}/v1/tokens", headers=key) as response:
            assert response.status == 405


async def test_without_a_model_there_are_sizes_and_nothing_is_guessed() -> None:
    async with gateway() as served:
        status, body = await tokens(served, image_body(data_url(encoded(scene(size=(40, 30)), "png"))))
    assert status == 200
    (image,) = body["images"]
    assert (image["width"], image["height"], image["exact"]) == (40, 30, False)
    for field in ("text_tokens", "image_tokens", "marker_tokens", "prompt_tokens", "fits"):
        assert body[field] is None
    assert image["image_tokens"] is image["tiles"] is image["used_width"] is None


async def test_a_text_alone_may_fit_or_not_where_only_the_engine_knows() -> None:
    async with gateway() as served:
        status, body = await tokens(served, content_body("Hi"))
    assert (status, body["fits"], body["images"]) == (200, None, [])


async def test_it_works_while_the_engine_does_not() -> None:
    body = image_body(data_url(encoded(scene(size=(300, 200)), "png")), detail="high")
    async with counting() as served:
        assert (await served.chat())[0] == 503
        status, counted = await tokens(served, body)
    assert (status, counted["model"], counted["fits"]) == (200, "demo", True)
    (image,) = counted["images"]
    assert image["exact"]
    assert image["image_tokens"] == 16 * image["tiles"]
    assert counted["prompt_tokens"] == counted["text_tokens"] + counted["image_tokens"] + counted["marker_tokens"]


async def test_what_does_not_fit_is_an_answer_with_the_error_in_it() -> None:
    picture = data_url(encoded(scene(size=(300, 200)), "png"))
    async with counting(gateway={"max_image_tokens": 17, "over_budget": "reject"}) as served:
        status, body = await tokens(served, image_body(picture, detail="high"))
        assert (status, body["fits"], body["refusal"]["code"]) == (200, False, "too_many_image_tokens")
        assert body["refusal"]["param"] == "messages.0.content.0.image_url"
        assert "17 (max_image_tokens)" in body["refusal"]["message"]
        assert body["image_tokens"] > 17
        assert body["text_tokens"] > 0
        status, body = await tokens(served, content_body("word " * 40_000))
        assert (status, body["fits"], body["refusal"]["code"]) == (200, False, "context_length_exceeded")
        status, body = await tokens(served, text_body(max_tokens=10**6))
        assert (status, body["fits"], body["refusal"]["param"]) == (200, False, "max_tokens")


async def test_a_smaller_picture_is_told_beforehand() -> None:
    async with counting(gateway={"max_image_tokens": 17}) as served:
        status, body = await tokens(served, image_body(data_url(encoded(scene(size=(300, 200)), "png"))))
    assert (status, body["fits"]) == (200, True)
    assert (body["images"][0]["scaled"], body["images"][0]["image_tokens"]) == (True, 16)
    assert [warning["code"] for warning in body["warnings"]] == ["image_downscaled"]


# Pictures by URL


@asynccontextmanager
async def scenery(modes: dict[str, Mode], **fetch: Any) -> AsyncGenerator[tuple[Served, ScriptedOrigin]]:
    origin = ScriptedOrigin(modes)
    async with origin.serve(HOME):
        media = fetching_from(origin, **fetch)
        lookup = ScriptedDns({"img.example": [[HOME]]})
        async with counting(media=media, lookup=lookup) as served:
            yield served, origin
        await origin.until_idle()


def url(origin: ScriptedOrigin, path: str = "/x") -> str:
    return f"http://img.example:{origin.port}{path}"


async def one(mode: Mode, **fetch: Any) -> tuple[int, dict[str, Any], ScriptedOrigin]:
    """The count of one picture that is served so."""
    async with scenery({"/x": mode}, **fetch) as (served, origin):
        status, body = await tokens(served, image_body(url(origin), detail="high"))
    return status, body, origin


def ranges(origin: ScriptedOrigin) -> list[str]:
    return [value for asked in origin.asked for value in asked.values("Range") or ["-"]]


def partial(body: bytes, total: int | str | None = None, start: int = 0) -> Mode:
    total = len(body) if total is None else total
    return answer(body[:FIRST], status=206, content_range=f"bytes {start}-{start + len(body[:FIRST]) - 1}/{total}")


LARGE_PNG = encoded(scene(size=SIZE), "png")
LARGE_JPEG = encoded(scene(size=SIZE), "jpeg", quality=95)
LARGE_WEBP = encoded(scene(size=SIZE), "webp", lossless=True)
TURNED_LATE = with_chunk(LARGE_PNG, chunk(b"eXIf", exif_block(6)), after_pixels=True)
TURNED_JPEG = encoded(scene(size=SIZE), "jpeg", quality=95, exif=b"Exif\0\0" + exif_block(6))
BEHIND_METADATA = LARGE_JPEG[:2] + segment(0xE2, bytes(65_000)) * 3 + LARGE_JPEG[2:]


def sizes_of(body: dict[str, Any]) -> tuple[int, int]:
    (image,) = body["images"]
    return image["width"], image["height"]


@pytest.mark.parametrize("data", [LARGE_PNG, LARGE_JPEG, LARGE_WEBP, TURNED_LATE, TURNED_JPEG])
def test_the_pictures_are_larger_than_a_first_look(data: bytes) -> None:
    assert len(data) > 2 * FIRST


@pytest.mark.parametrize(
    ("data", "size", "exact"),
    [
        (LARGE_JPEG, SIZE, True),
        (LARGE_WEBP, SIZE, True),
        (TURNED_JPEG, SIZE[::-1], True),
        (LARGE_PNG, SIZE, False),
        (TURNED_LATE, SIZE, False),
        (encoded(scene(size=(40, 30)), "png"), (40, 30), True),
        (encoded(scene(size=(300, 300)), "png"), (300, 300), True),
    ],
    ids=["jpeg", "webp", "jpeg turned", "png", "png turned at its end", "small", "square"],
)
@pytest.mark.parametrize("knows_ranges", [True, False])
async def test_a_first_look_tells_the_size(data: bytes, size: tuple[int, int], exact: bool, knows_ranges: bool) -> None:
    status, body, origin = await one(partial(data) if knows_ranges else answer(data))
    assert status == 200, body
    assert sizes_of(body) == size
    assert body["images"][0]["exact"] is exact
    assert ranges(origin) == [f"bytes=0-{FIRST - 1}"]


async def test_of_a_picture_that_may_lie_on_its_side_both_counts_are_told() -> None:
    status, body, _ = await one(partial(TURNED_LATE))
    assert status == 200
    (image,) = body["images"]
    async with counting() as served:
        lying = encoded(scene(size=(SIZE[1], SIZE[0])), "jpeg")
        _, other = await tokens(served, image_body(data_url(lying, "image/jpeg"), detail="high"))
        _, complete = await tokens(served, image_body(data_url(TURNED_LATE), detail="high"))
    assert image["turned"]["image_tokens"] == other["images"][0]["image_tokens"]
    assert (image["turned"]["used_width"], image["turned"]["used_height"]) == (
        other["images"][0]["used_width"],
        other["images"][0]["used_height"],
    )
    assert complete["images"][0]["exact"]
    assert sizes_of(complete) == SIZE[::-1]


async def test_what_a_camera_puts_in_front_is_looked_behind() -> None:
    status, body, origin = await one(answer(BEHIND_METADATA))
    assert (status, sizes_of(body)) == (200, SIZE)
    assert ranges(origin) == [f"bytes=0-{FIRST - 1}", f"bytes=0-{SECOND - 1}"]


@pytest.mark.parametrize(
    "mode",
    [
        partial(LARGE_JPEG, start=1000),
        answer(LARGE_JPEG[:FIRST], status=206),
        answer(LARGE_JPEG[:FIRST], status=206, content_range="bytes */9"),
        answer(status=416),
    ],
    ids=["another range", "no range", "a range of nothing", "no such range"],
)
async def test_an_answer_that_is_no_beginning_is_not_used(mode: Mode) -> None:
    """Then the whole is fetched, as a request would; these servers have no whole either."""
    status, body, origin = await one(mode)
    assert (status, body["error"]["code"]) == (400, "media_url_status")
    assert body["error"]["param"] == "messages.0.content.0.image_url"
    assert ranges(origin) == [f"bytes=0-{FIRST - 1}", "-"]


@pytest.mark.parametrize(
    ("mode", "status", "code"),
    [
        (answer(status=404), 400, "media_url_status"),
        (redirect("http://img.example/"), 400, "media_url_redirect"),
        (answer(LARGE_JPEG, content_encoding="gzip"), 400, "media_url_encoding"),
        (raw(b"nonsense"), 400, "media_url_unreachable"),
        (answer(b"", length="5"), 400, "media_url_unreachable"),
        (answer(LARGE_JPEG, length=str(2**30)), 413, "media_too_large"),
        (partial(LARGE_JPEG, total=2**30), 413, "media_too_large"),
        (answer(b"%PDF-1.7 and more"), 415, "unsupported_image_format"),
        (answer(b""), 422, "image_truncated"),
        (answer(LARGE_PNG[: FIRST // 2]), 422, "image_truncated"),
        (answer(encoded(scene(size=(9000, 1)), "png")), 413, "media_too_large"),
    ],
)
async def test_errors_are_those_of_a_request(mode: Mode, status: int, code: str) -> None:
    got, body, _ = await one(mode)
    assert (got, body["error"]["code"]) == (status, code), body
    assert body["error"]["param"] == "messages.0.content.0.image_url"


@pytest.mark.parametrize("chunked", [True, False])
async def test_an_endless_answer_ends_after_a_look(chunked: bool) -> None:
    async def endless(writer: Any) -> None:
        writer.write(b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-65535/*\r\n")
        writer.write(b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"\r\n")
        while True:
            piece = LARGE_JPEG[:FIRST]
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            await writer.drain()

    status, body, origin = await one(endless)
    assert (status, sizes_of(body)) == (200, SIZE)
    assert origin.connections == 1
    status, body, origin = await one(endless_body(b"\xff\xe2\xff\xff" + bytes(65_533), chunked=chunked))
    assert (status, body["error"]["code"]) == (415, "unsupported_image_format")
    assert origin.connections == 1


async def test_limits_of_a_request_hold() -> None:
    async with scenery({"/x": answer(LARGE_JPEG)}, max_remote_images=2, max_bytes_per_request=len(LARGE_JPEG)) as (
        served,
        origin,
    ):
        parts = [{"type": "image_url", "image_url": {"url": url(origin)}}] * 3
        assert (await tokens(served, content_body(parts)))[1]["error"]["code"] == "too_many_images"
        assert origin.connections == 0
        status, body = await tokens(served, content_body(parts[:2]))
        assert (status, body["error"]["code"]) == (413, "media_too_large")
        assert (await tokens(served, content_body(parts[:1])))[0] == 200
        for blocked in ("http://other.example/x", "file:///etc/passwd", f"http://{HOME}:{origin.port}/x"):
            assert (await tokens(served, image_body(blocked)))[1]["error"]["code"] == "media_url_blocked"
