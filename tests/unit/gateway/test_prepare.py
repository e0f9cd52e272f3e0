"""What a prompt that cannot fit is told, before anything of it is rendered."""

from __future__ import annotations

import re

import pytest

from opsin.app import load_local_model
from opsin.cache.keys import FeatureKeys
from opsin.core.conversation import Conversation, Message, TextPart
from opsin.core.errors import ContextLengthExceeded
from opsin.engine.fake import FakeConfig, FakeEngine
from opsin.gateway.config import GatewayConfig
from opsin.gateway.prepare import TokenPreparer
from opsin.media.config import MediaConfig
from opsin.media.pool import RenderPool
from opsin.settings import Settings
from opsin.telemetry.metrics import Metrics

MAX_MODEL_LEN = 100


@pytest.fixture(scope="module")
def preparer() -> TokenPreparer:
    """The demo model's, with a short context."""
    model = load_local_model(Settings())
    return TokenPreparer(
        family=model.family,
        keys=FeatureKeys(("demo",)),
        engine=FakeEngine(FakeConfig()),
        renderer=RenderPool(MediaConfig()),
        builder=model.builder,
        metrics=Metrics(stages=frozenset(), cache=False, kv=False),
        limits=GatewayConfig(),
        max_model_len=MAX_MODEL_LEN,
    )


async def refusal(preparer: TokenPreparer, text: str, max_tokens: int) -> ContextLengthExceeded:
    prompt = Conversation((Message("user", (TextPart(text),)),))
    with pytest.raises(ContextLengthExceeded) as caught:
        await preparer.prepare("r", "scope", prompt, (), max_tokens)
    return caught.value


async def test_a_short_text_is_counted_exactly(preparer: TokenPreparer) -> None:
    prompt = Conversation((Message("user", (TextPart("Hi"),)),))
    room = (await preparer.prepare("r", "scope", prompt, (), None)).max_tokens
    assert room is not None
    for max_tokens in (room + 1, 10**9):
        message = (await refusal(preparer, "Hi", max_tokens)).message
        assert [int(number) for number in re.findall(r"\d+", message)] == [
            MAX_MODEL_LEN - room, max_tokens, MAX_MODEL_LEN
        ]  # fmt: skip
        assert "at least" not in message


async def test_a_long_one_is_told_a_least_that_is_true(preparer: TokenPreparer) -> None:
    assert "at least" in (await refusal(preparer, "word " * 40_000, 1)).message


async def test_the_field_that_alone_is_too_much_is_named(preparer: TokenPreparer) -> None:
    assert (await refusal(preparer, "Hi", MAX_MODEL_LEN)).param == "messages"
    assert (await refusal(preparer, "Hi", MAX_MODEL_LEN + 1)).param == "max_tokens"
