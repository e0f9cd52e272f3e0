"""Public cases of section 2C in which a picture reached the engine and killed it, at a gateway with the demo model."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from tests.attacks.decoding import ask, body_of, is_alive, post, refusal
from tests.corpus.pictures import encoded, scene
from tests.integration.gateways import Served, gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def demo() -> AsyncGenerator[Served]:
    async with gateway(
        engine="local", local={"num_threads": 1, "warm_up_s": 0}, media={"render_timeout_s": 60}
    ) as served:
        yield served


@pytest.mark.parametrize("size", [(1, 1), (1, 3), (3, 1), (2, 2)], ids=str)
async def test_case_51_a_picture_of_few_pixels_is_a_picture(demo: Served, size: tuple[int, int]) -> None:
    """1 x 1 was read with its axes exchanged, and the engine died of it."""
    for mode in ("RGB", "L", "RGBA"):
        status, answer = await post(demo, body_of([encoded(scene(mode, size), "png")]))
        assert status == 200, answer
        assert answer["usage"]["prompt_tokens_details"]["image_tokens"] > 0
    assert await is_alive(demo)


@pytest.mark.parametrize("size", [(100, 1), (1, 100), (26, 28), (27, 27), (28, 28), (1, 1000), (1093, 5)], ids=str)
async def test_case_52_a_narrow_picture_is_answered_or_refused(demo: Served, size: tuple[int, int]) -> None:
    """A height of 1, or a side below a model's patch: 500 elsewhere."""
    status, answer = await post(demo, body_of([encoded(scene(size=size), "png")]))
    if max(size) > 100 * min(size):
        assert (status, answer["error"]["code"]) == (400, "image_aspect_ratio")
    else:
        assert status == 200, answer
    assert await is_alive(demo)


async def test_case_67_a_refused_request_leaves_the_caches_as_they_were(demo: Served) -> None:
    """A picture of a refused request was noted in front but not in the engine, which then failed all requests."""
    picture = encoded(scene(size=(40, 40)), "png")
    early = await refusal(demo, picture, max_tokens=100_000)  # known before the picture is looked up
    late = await refusal(demo, picture, question="word " * 4000)  # known when the text is tokenised
    assert early[:2] == late[:2] == (400, "context_length_exceeded")
    first, again = [await ask(demo, picture, temperature=0) for _ in range(2)]
    assert first["choices"] == again["choices"]
    await demo.until_running(0)
