from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsin.core.conversation import Conversation, Detail, MediaRef, Message, TextPart
from opsin.core.errors import Code, InvalidRequest
from opsin.core.warnings import WarningCode
from opsin.prompt.guard import JOINER, OnSpecialTokens, TextGuard
from opsin.prompt.special_tokens import known_special_tokens

PICTURE = MediaRef("data:", Detail.AUTO, "")
KNOWN = known_special_tokens()
GUARD = TextGuard(KNOWN, OnSpecialTokens.BREAK)
REJECTING = TextGuard(KNOWN, OnSpecialTokens.REJECT)


def user(*parts: str | MediaRef) -> Conversation:
    return Conversation((Message("user", tuple(TextPart(one) if isinstance(one, str) else one for one in parts)),))


def texts(conversation: Conversation) -> list[str]:
    return [part.text for message in conversation.messages for part in message.parts if isinstance(part, TextPart)]


def as_templates_write(conversation: Conversation) -> list[str]:
    """A message's texts one after the other: with a line between, without, and trimmed."""
    parts = [[part.text for part in message.parts if isinstance(part, TextPart)] for message in conversation.messages]
    return [
        written
        for message in parts
        for written in ("".join(message), "\n".join(message), "".join(text.strip() for text in message))
    ]


@pytest.mark.parametrize(
    ("parts", "broken"),
    [
        (("Hello <image>!",), ["Hello <\u2060image>!"]),
        (("<|im_end|><|im_start|>",), ["<\u2060|im_end|><\u2060|im_start|>"]),
        (("<im<image>age>",), ["<im<\u2060image>age>"]),
        (("<im", "age>"), ["<\u2060im", "age>"]),
        (("<", "image", ">"), ["<\u2060", "image", ">"]),
        (("<", PICTURE, "image>"), ["<\u2060", "image>"]),
        (("a <start_of_ ", "\n image> b"), ["a <\u2060start_of_ ", "\n image> b"]),
        (("  <image>", "", " ", "<s>"), ["  <\u2060image>", "", " ", "<\u2060s>"]),
    ],
)
def test_what_becomes_of_tokens(parts: tuple[str | MediaRef, ...], broken: list[str]) -> None:
    guarded = GUARD.guard(user(*parts))
    assert texts(guarded.conversation) == broken
    assert [part for part in guarded.conversation.messages[0].parts if isinstance(part, MediaRef)] == [
        part for part in parts if isinstance(part, MediaRef)
    ]


def test_the_answer_says_it_once() -> None:
    talk = Conversation(
        (
            Message("system", (TextPart("Be brief."),)),
            Message("user", (TextPart("<image><s>"),)),
            Message("assistant", (TextPart("</s>"),)),
        )
    )
    (warning,) = GUARD.guard(talk).warnings
    assert (warning.code, warning.param) == (WarningCode.SPECIAL_TOKENS_BROKEN, "messages.1.content")
    assert ": 3, the first here." in warning.message
    assert "<" not in warning.message


def test_a_conversation_without_tokens_is_the_same_one() -> None:
    talk = user("What is <b>this</b>?", PICTURE, "a | b")
    assert GUARD.guard(talk).conversation is talk
    assert REJECTING.guard(talk).warnings == ()


def test_a_refusal_names_the_place_and_nothing_else() -> None:
    talk = Conversation((Message("system", (TextPart("ok"),)), *user(PICTURE, "and", "  the <secret|> here").messages))
    with pytest.raises(InvalidRequest) as caught:
        REJECTING.guard(talk)
    error = caught.value
    assert (error.code, error.status, error.param) == (Code.SPECIAL_TOKENS_IN_TEXT, 400, "messages.1.content")
    assert "part 2 spells a special token at character 6," in error.message
    assert "secret" not in error.message


PIECES = st.one_of(
    st.sampled_from(
        ["<image>", "<|im_end|>", "[INST]", "</s>", "<__media__>", "<im", "age>", "<|", "|>", "<", ">", "[IMG"]
    ),
    st.text("<>|[]/ \nims_", max_size=4),
    st.text(max_size=3),
)
TEXTS = st.lists(st.lists(PIECES, max_size=5).map("".join), min_size=1, max_size=4)


@settings(deadline=None)
@given(TEXTS)
def test_nothing_is_left_and_nothing_else_is_changed(parts: list[str]) -> None:
    guarded = GUARD.guard(user(*parts)).conversation
    for written in as_templates_write(guarded):
        assert list(KNOWN.starts(written)) == []
    originals = [part.replace(JOINER, "") for part in parts]
    assert [text.replace(JOINER, "") for text in texts(guarded)] == originals
    assert GUARD.guard(guarded).conversation is guarded  # and once is enough


def test_fields_for_the_template_are_texts_too() -> None:
    talk = Conversation(
        (
            Message(
                "assistant", (), (("tool_calls", b'[{"function":{"arguments":"<\\u007cim_end|>"}}]'), ("name", b'"a"'))
            ),
        ),
        fields=(("tools", b'[{"<image>": ["<s>", 1.50]}]'), ("guided_regex", b'"<s>"')),
    )
    guarded = GUARD.guard(talk)
    joiner = JOINER.encode()
    assert guarded.conversation.messages[0].fields == (
        ("tool_calls", b'[{"function":{"arguments":"<%b|im_end|>"}}]' % joiner),
        ("name", b'"a"'),
    )
    assert guarded.conversation.fields == (
        ("tools", b'[{"<%bimage>":["<%bs>",1.5]}]' % (joiner, joiner)),
        ("guided_regex", b'"<s>"'),
    )
    (warning,) = guarded.warnings
    assert (warning.param, ": 3, the first here." in warning.message) == ("tools", True)


def test_fields_without_special_tokens_stay_as_they_came() -> None:
    talk = Conversation(
        (Message("user", (TextPart("hi"),), (("name", b'"\\u0062" '),)),), fields=(("tools", b"[ 1.50 ]"),)
    )
    assert GUARD.guard(talk).conversation is talk


@pytest.mark.parametrize(
    ("talk", "param"),
    [
        (Conversation((Message("user", (), (("name", b'"<s>"'),)),)), "messages.0.name"),
        (Conversation((), fields=(("tools", b'{"a": "<s>"}'),)), "tools"),
    ],
)
def test_fields_with_special_tokens_are_refused_where_texts_are(talk: Conversation, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        REJECTING.guard(talk)
    assert (caught.value.code, caught.value.param) == (Code.SPECIAL_TOKENS_IN_TEXT, param)
    assert "<s>" not in caught.value.message
