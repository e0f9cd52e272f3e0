"""Public cases of section 2E: what a cached feature is known by, and who may reach it."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from opsin.cache.keys import FeatureKeys, Scopes
from opsin.core.conversation import Detail, MediaRef
from opsin.engine.api import GenerationRequest, Picture, SamplingParams, TokenPrompt
from opsin.engine.fake import FakeEngine
from opsin.local_model import load_local_model
from opsin.media.config import MediaConfig
from opsin.media.loader import MediaLoader
from opsin.settings import load_settings
from opsin.vision.plan import planned
from opsin.vision.registry import native_family_for
from tests.corpus.pictures import data_url
from tests.integration.gateways import gateway

CARD = load_local_model(load_settings({})).card
FAMILY = native_family_for(CARD)
KEYS = FeatureKeys(("model", "commit"))
SCOPES = Scopes()


def png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


async def key(data: bytes, *, tenant: str = "a", detail: Detail = Detail.AUTO, mime: str = "image/png") -> str:
    """As a request makes it: from the bytes that it holds, loaded anew."""
    (media,) = await MediaLoader(MediaConfig()).load([MediaRef(data_url(data, mime), detail, "here")])
    return KEYS.key(SCOPES.of(tenant), media.sha256, planned(FAMILY, media.header.upright, detail))


async def test_case_74_size_mode_and_palette_are_part_of_the_identity() -> None:
    pixels = np.arange(30 * 100, dtype=np.uint8)
    upright, lying = Image.fromarray(pixels.reshape(30, 100)), Image.fromarray(pixels.reshape(100, 30))
    assert upright.tobytes() == lying.tobytes()
    with_palettes: list[Image.Image] = []
    for colour in (0, 200):
        picture = Image.fromarray(pixels.reshape(30, 100)).convert("P")
        picture.putpalette([colour] * 768)
        with_palettes.append(picture)
    assert with_palettes[0].tobytes() == with_palettes[1].tobytes()
    pictures = [upright, lying, *with_palettes]
    assert len({await key(png(picture)) for picture in pictures}) == len(pictures)
    tall = png(Image.fromarray(pixels.reshape(100, 30)).resize((300, 1000)))
    assert len({await key(tall, detail=detail) for detail in (Detail.LOW, Detail.HIGH)}) == 2


async def test_case_76_keys_have_256_bits_end_to_end() -> None:
    """LMCache folded them to 16: a few hundred pictures were enough for two to meet."""
    keys = [await key(png(Image.new("RGB", (8, 8), (red, green, 7)))) for red in range(25) for green in range(20)]
    assert len(set(keys)) == 500
    assert {len(bytes.fromhex(one)) for one in keys} == {32}
    for width in (4, 8, 16):  # no part of a key is constant
        assert len({one[:width] for one in keys}) > 490
        assert len({one[-width:] for one in keys}) > 490


PICTURE = data_url(png(Image.new("RGB", (8, 8), (1, 2, 3))))
NAMED: dict[str, dict[str, Any]] = {
    "a uuid beside the picture": {"image_url": {"url": PICTURE}, "uuid": "mine"},
    "a uuid in its place": {"image_url": None, "uuid": "mine"},
    "a hash": {"image_url": {"url": PICTURE, "content_hash": "mine"}},
}


@pytest.mark.parametrize("name", NAMED)
async def test_case_77_and_82_a_clients_name_for_a_picture_is_refused(name: str) -> None:
    """Neither beside the picture nor in its place: what is not read cannot be looked up, and bytes are hashed here."""
    async with gateway() as served:
        status, answer = await served.chat(
            messages=[{"role": "user", "content": [{"type": "image_url", **NAMED[name]}]}]
        )
    assert (status, answer["error"]["code"]) == (400, "unsupported_parameter")
    assert "mine" not in answer["error"]["message"]


async def test_case_82_the_hash_is_always_of_the_bytes() -> None:
    picture = png(Image.new("RGB", (8, 8), (1, 2, 3)))
    other = png(Image.new("RGB", (8, 8), (1, 2, 4)))
    assert await key(picture) == await key(picture, mime=f"image/png;sha256={'0' * 64}")
    assert await key(picture) != await key(other)


async def _feed(engine: FakeEngine, request_id: str, tenant: str, feature: str) -> bool:
    """Runs a request with one picture; whether its features were there already."""
    reservation = await engine.reserve(request_id, [feature])
    request = GenerationRequest(
        id=request_id,
        scope=SCOPES.of(tenant),
        prompt=TokenPrompt((1, 2, 3)),
        pictures=(Picture(key=feature, image_tokens=1, num_tiles=1),),
        sampling=SamplingParams(max_tokens=1),
        submitted_at=0.0,
    )
    async for _ in engine.submit(request):
        pass
    return feature in reservation.leased


async def test_case_78_a_tenant_cannot_see_that_another_sent_the_picture() -> None:
    """Features of one tenant are no hit for another, so that nothing is faster for it; one's own are."""
    picture = png(Image.new("RGB", (8, 8), (9, 9, 9)))
    engine = FakeEngine()
    await engine.start()
    asked = (("first", "a"), ("second", "b"), ("third", "a"))
    hits = [await _feed(engine, name, tenant, await key(picture, tenant=tenant)) for name, tenant in asked]
    assert hits == [False, False, True]


async def test_case_78_the_salt_is_the_servers_and_no_request_changes_it() -> None:
    assert Scopes().of("a") != Scopes().of("a")  # a secret of its own at each start
    async with gateway() as served:
        for field, value in (("cache_salt", "mine"), ("mm_processor_kwargs", {"cache": "mine"})):
            status, answer = await served.chat(**{field: value})
            assert (status, answer["error"]["code"]) == (400, "unsupported_parameter")
        assert (await served.chat(user="b", prompt_cache_key="b", metadata={"tenant": "b"}))[0] == 200  # all ignored
