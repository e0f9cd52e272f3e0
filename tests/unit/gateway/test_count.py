"""What a request towards an upstream is told beforehand; ``tests/integration`` compares it with the request itself."""

from __future__ import annotations

import pytest

from opsin.core.conversation import Conversation, Detail, MediaRef, Message, TextPart
from opsin.gateway.budget import Want
from opsin.gateway.config import GatewayConfig
from opsin.gateway.count import MessageCounter, View
from opsin.gateway.fitting import MessageFitter
from opsin.gateway.message_plan import MessagePlanner
from opsin.models.facts import known_checkpoints
from opsin.prompt.guard import OnSpecialTokens, TextGuard
from opsin.prompt.length import EstimatedLength
from opsin.prompt.special_tokens import known_special_tokens
from opsin.vision.plan import Size
from opsin.vision.registry import family_for

QWEN = family_for(known_checkpoints()["Qwen/Qwen2.5-VL-7B-Instruct"].vision)
PROMPT = Conversation((Message("user", (MediaRef("", Detail.HIGH, "p"), TextPart("?"))),))
ESTIMATED = 1 + 8 + 32


def counter(max_model_len: int | None = None) -> MessageCounter:
    fitter = MessageFitter(TextGuard(known_special_tokens(), OnSpecialTokens.BREAK))
    planner = MessagePlanner(family=QWEN, text=EstimatedLength(), limits=GatewayConfig(), max_model_len=max_model_len)
    fitter.plan_with(planner)
    return MessageCounter(fitter)


def view(width: int, height: int, *, is_settled: bool = True) -> View:
    return View(Want(Size(width, height), Detail.HIGH, "p"), is_settled)


async def test_of_a_picture_that_may_lie_on_its_side_both_counts_are_told() -> None:
    counted = await counter(4096).count(PROMPT, [view(560, 280, is_settled=False)], None)
    (picture,) = counted.pictures
    assert picture.count is not None
    assert picture.turned is not None
    assert (picture.count.used, picture.turned.used) == (Size(560, 280), Size(280, 560))
    assert counted.fits is True
    assert not picture.is_exact


@pytest.mark.parametrize(("room", "fits"), [(202, True), (201, False)])
async def test_it_fits_to_the_token_beside_the_estimated_text(room: int, fits: bool) -> None:
    """200 image tokens and 2 markers."""
    counted = await counter(ESTIMATED + 10 + room).count(PROMPT, [view(560, 280)], 10)
    assert counted.fits is fits
    assert (counted.image_tokens, counted.marker_tokens, counted.text_tokens) == (200, 2, None)


async def test_without_a_context_only_a_refusal_is_sure() -> None:
    counted = await counter().count(PROMPT, [view(560, 280)], 10)
    assert (counted.fits, counted.image_tokens) == (None, 200)
