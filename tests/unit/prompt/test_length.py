"""What a conversation's text takes at an engine with a template of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opsin.core.conversation import Conversation, Detail, MediaRef, Message, TextPart
from opsin.core.errors import ConfigError
from opsin.local_model import LocalModel, load_local_model
from opsin.prompt.length import EstimatedLength, TemplateLength
from opsin.prompt.template import ChatTemplate
from opsin.settings import Settings

PICTURE = MediaRef("data:", Detail.AUTO, "p")


def asked(*parts: TextPart | MediaRef) -> Conversation:
    return Conversation((Message("user", parts),))


@pytest.fixture(scope="module")
def demo() -> LocalModel:
    return load_local_model(Settings())


@pytest.fixture(scope="module")
def measure(demo: LocalModel) -> TemplateLength:
    return TemplateLength(demo.tokenizer, ChatTemplate(demo.card.chat_template, demo.card.special_tokens))


@pytest.mark.parametrize(
    "conversation",
    [
        asked(TextPart("What is it?")),
        asked(PICTURE, TextPart("What is it?")),
        asked(TextPart("Left:"), PICTURE, TextPart("right:"), PICTURE, TextPart("Which one is red?")),
        Conversation(
            (
                Message("system", (TextPart("Be short."),)),
                Message("user", (PICTURE, PICTURE, TextPart("빨간 원은 어디에 있나요?"))),
                Message("assistant", (TextPart("Left."),)),
                Message("user", (TextPart("Why?"),)),
            )
        ),
    ],
)
def test_it_is_what_the_local_engine_counts(
    demo: LocalModel, measure: TemplateLength, conversation: Conversation
) -> None:
    tokenised = demo.builder.tokenise(conversation)
    length = measure.length(conversation)
    assert (length.tokens, length.is_exact) == (tokenised.text_tokens, True)


def test_what_the_template_refuses_is_estimated(demo: LocalModel) -> None:
    source = "{% if messages | length > 1 %}{{ raise_exception('one') }}{% endif %}" + demo.card.chat_template
    strict = TemplateLength(demo.tokenizer, ChatTemplate(source, demo.card.special_tokens))
    turns = Conversation((*asked(TextPart("Hi")).messages, *asked(TextPart("Hi")).messages))
    assert strict.length(turns) == EstimatedLength().length(turns)


def test_a_template_for_strings_is_no_measure(demo: LocalModel) -> None:
    for source in ("{{ messages[0].content }}", "{{ raise_exception('no') }}", "nothing"):
        with pytest.raises(ConfigError, match="chat template"):
            TemplateLength(demo.tokenizer, ChatTemplate(source, {}))


def test_an_estimate_is_by_bytes_and_messages() -> None:
    assert EstimatedLength().length(asked(TextPart("12345678"), PICTURE)).tokens == 2 + 8 + 32
    assert EstimatedLength().length(asked(TextPart("빨간"))).tokens == 2 + 8 + 32
    assert not EstimatedLength().length(asked(TextPart("\ud800"))).is_exact


def test_beside_further_fields_nothing_is_exact(measure: TemplateLength) -> None:
    """A template may write them too."""
    turns = asked(TextPart("Hello."))
    assert measure.length(turns).is_exact
    assert not measure.length(replace(turns, fields=(("tools", b"[]"),))).is_exact
    message = replace(turns.messages[0], fields=(("tool_call_id", b'"1"'),))
    assert not measure.length(Conversation((message,))).is_exact
