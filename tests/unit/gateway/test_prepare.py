"""What a request is told that cannot fit, before anything of it is rendered, and what becomes of pictures that can."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest

from opsin.cache.keys import FeatureKeys, Scopes
from opsin.cache.rendering import Made
from opsin.cache.store import MISS
from opsin.core.conversation import UNBOUNDED, Conversation, Detail, MediaRef, Message, PixelBounds, TextPart
from opsin.core.errors import ContextLengthExceeded, InvalidRequest
from opsin.engine.api import TokenPrompt
from opsin.engine.fake import FakeConfig, FakeEngine
from opsin.gateway.config import GatewayConfig
from opsin.gateway.fitting import PromptFitter
from opsin.gateway.prepare import Prepared, TokenPreparer
from opsin.local_model import load_local_model
from opsin.media.encoding import Encoding
from opsin.media.types import ImageFormat, ImageHeader, MediaBytes, RenderedPicture
from opsin.settings import Settings
from opsin.telemetry.metrics import Metrics
from opsin.tenants.lanes import Cost
from opsin.vision.plan import RenderRecipe, Size, planned

MAX_MODEL_LEN = 100
MODEL = load_local_model(Settings())
SIZE = Size(256, 256)
PARAM = "messages.0.content.0.image_url"


@dataclass
class BlankRenderer:
    """Tiles of nothing, and how often it was asked for some."""

    rendered: list[RenderRecipe] = field(default_factory=list[RenderRecipe])

    async def render(self, scope: str, media: MediaBytes, recipe: RenderRecipe) -> Made[RenderedPicture]:
        self.rendered.append(recipe)
        tiles = RenderedPicture(bytes(recipe.num_tiles * recipe.tile.area * 3), recipe.num_tiles, recipe.tile)
        return Made(tiles, MISS)

    async def verify(self, scope: str, media: MediaBytes) -> Made[None]:
        raise AssertionError("a TOKENS engine has its pictures rendered")

    async def scale(self, scope: str, media: MediaBytes, size: Size, encoding: Encoding) -> Made[MediaBytes]:
        raise AssertionError("a TOKENS engine has its pictures rendered")


class OpenGate:
    """Nobody waits."""

    async def enter(self, cost: Cost) -> None:
        assert cost.total > 0


OPEN = OpenGate()


@dataclass
class Bench:
    """The demo model's preparer with its parts at hand; a cut picture takes 80 tokens and 16 whole."""

    max_model_len: int = MAX_MODEL_LEN
    limits: GatewayConfig = field(default_factory=GatewayConfig)
    engine: FakeEngine = field(default_factory=lambda: FakeEngine(FakeConfig()))
    renderer: BlankRenderer = field(default_factory=BlankRenderer)

    async def prepare(
        self,
        text: str = "?",
        *details: Detail,
        max_tokens: int | None = None,
        size: Size = SIZE,
        bounds: PixelBounds = UNBOUNDED,
    ) -> Prepared:
        refs = [MediaRef("", detail, PARAM.replace("0.image", f"{at}.image")) for at, detail in enumerate(details)]
        header = ImageHeader(ImageFormat.PNG, size, 1, 1)
        fitter = PromptFitter(
            family=MODEL.family, builder=MODEL.builder, limits=self.limits, max_model_len=self.max_model_len
        )
        preparer = TokenPreparer(
            fitter=fitter,
            keys=FeatureKeys(("demo",)),
            scopes=Scopes(),
            engine=self.engine,
            renderer=self.renderer,
            builder=MODEL.builder,
            metrics=Metrics(stages=frozenset(), cache=False, kv=False),
        )
        prompt = Conversation((Message("user", (*refs, TextPart(text))),), bounds)
        media = [MediaBytes(b"", "sha", header, ref.param) for ref in refs]
        return await preparer.prepare("r", "scope", prompt, media, max_tokens, OPEN)

    async def refusal(self, *details: Detail, text: str = "?", max_tokens: int | None = None) -> InvalidRequest:
        """The error, which leaves nothing behind."""
        with pytest.raises(InvalidRequest) as caught:
            await self.prepare(text, *details, max_tokens=max_tokens)
        assert self.renderer.rendered == []
        assert (await self.engine.purge("scope", None)).tiers == (await FakeEngine().purge("scope", None)).tiers
        return caught.value


async def num_ids(*details: Detail) -> int:
    """Of a prompt whose pictures are as asked for."""
    prompt = (await Bench(max_model_len=1000).prepare("?", *details)).prompt
    assert isinstance(prompt, TokenPrompt)
    return len(prompt.ids)


async def test_a_short_text_is_counted_exactly() -> None:
    bench = Bench()
    room = (await bench.prepare("Hi")).max_tokens
    assert room is not None
    for max_tokens in (room + 1, 10**9):
        message = (await bench.refusal(text="Hi", max_tokens=max_tokens)).message
        assert [int(number) for number in re.findall(r"\d+", message)] == [
            MAX_MODEL_LEN - room, max_tokens, MAX_MODEL_LEN
        ]  # fmt: skip
        assert "at least" not in message


async def test_a_long_one_is_told_a_least_that_is_true() -> None:
    assert "at least" in (await Bench().refusal(text="word " * 40_000)).message


async def test_the_field_that_alone_is_too_much_is_named() -> None:
    assert (await Bench().refusal(max_tokens=MAX_MODEL_LEN)).param == "messages"
    assert (await Bench().refusal(max_tokens=MAX_MODEL_LEN + 1)).param == "max_tokens"


async def test_a_picture_that_does_not_fit_is_scaled_and_said_so() -> None:
    bench = Bench()
    prepared = await bench.prepare("?", Detail.AUTO, max_tokens=20)
    (used,) = prepared.used
    assert used.count is not None
    assert (used.scaled, used.count.num_tiles, used.count.image_tokens) == (True, 1, 16)
    (warning,) = prepared.warnings
    assert (warning.code, warning.param) == ("image_downscaled", PARAM)
    assert " 128 x 128 pixels, 16 visual tokens" in warning.message
    assert [recipe.num_tiles for recipe in bench.renderer.rendered] == [1]


async def test_with_room_for_it_nothing_is_scaled() -> None:
    prepared = await Bench(max_model_len=1000).prepare("?", Detail.AUTO, max_tokens=20)
    assert [(used.scaled, used.count and used.count.image_tokens) for used in prepared.used] == [(False, 80)]
    assert prepared.warnings == ()


async def test_a_scaled_picture_has_features_of_its_own() -> None:
    whole = await Bench(max_model_len=1000).prepare("?", Detail.AUTO, max_tokens=20)
    scaled = await Bench().prepare("?", Detail.AUTO, max_tokens=20)
    assert scaled.pictures[0].key != whole.pictures[0].key
    # As asked for or as scaled down: the same pixels, so the same features.
    low = await Bench().prepare("?", Detail.LOW, max_tokens=20)
    assert low.pictures[0].image_tokens == scaled.pictures[0].image_tokens


@pytest.mark.parametrize("detail", [Detail.HIGH, Detail.ORIGINAL])
async def test_high_that_does_not_fit_is_refused_with_both_numbers(detail: Detail) -> None:
    bench = Bench()
    needed = planned(MODEL.family, SIZE, detail).prompt_tokens
    left = MAX_MODEL_LEN - await num_ids(detail) + needed - 20
    refused = await bench.refusal(detail, max_tokens=20)
    assert (refused.code, refused.param) == ("context_length_exceeded", PARAM)
    assert re.findall(r"\d+", refused.message) == [str(needed), str(left)]


@pytest.mark.parametrize("detail", Detail)
async def test_a_plan_counts_what_the_prompt_holds(detail: Detail) -> None:
    assert await num_ids(detail) - await num_ids() == planned(MODEL.family, SIZE, detail).prompt_tokens


async def test_rejecting_and_downscaling_are_the_operators_choice() -> None:
    reject = Bench(limits=GatewayConfig.model_validate({"over_budget": "reject"}))
    assert isinstance(await reject.refusal(Detail.AUTO, max_tokens=20), ContextLengthExceeded)
    downscale = Bench(limits=GatewayConfig.model_validate({"over_budget": "downscale"}))
    assert (await downscale.prepare("?", Detail.HIGH, max_tokens=20)).used[0].scaled


async def test_an_operators_limit_is_refused_before_the_text_is_read() -> None:
    bench = Bench(max_model_len=10**6, limits=GatewayConfig(max_image_tokens=15))
    assert (await bench.refusal(Detail.LOW, text="word " * 3000)).code == "too_many_image_tokens"


async def test_scaling_leaves_room_for_an_answer_of_no_stated_length() -> None:
    """Two cut pictures would fit, with 2 tokens left to answer."""
    bench = Bench(max_model_len=await num_ids(Detail.HIGH, Detail.HIGH) + 2)
    as_asked = await bench.prepare("?", Detail.HIGH, Detail.HIGH)
    assert (as_asked.max_tokens, [used.scaled for used in as_asked.used]) == (2, [False, False])
    scaled = await bench.prepare("?", Detail.AUTO, Detail.AUTO)
    assert scaled.max_tokens is not None
    assert scaled.max_tokens >= bench.max_model_len // 8


async def test_a_request_lowers_the_size_itself_without_a_warning() -> None:
    bounds = PixelBounds(max_pixels=128 * 128)
    prepared = await Bench(max_model_len=1000).prepare("?", Detail.HIGH, bounds=bounds)
    assert [(used.scaled, used.count and used.count.image_tokens) for used in prepared.used] == [(False, 16)]
    assert prepared.warnings == ()
    with pytest.raises(InvalidRequest, match=r"the least of this model is 16384"):
        await Bench().prepare("?", Detail.HIGH, bounds=PixelBounds(max_pixels=1))
