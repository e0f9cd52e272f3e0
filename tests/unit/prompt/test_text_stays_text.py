"""No text of a request becomes an added token of the model: each token of each kind of tokenizer, in every place.

And what the template writes for a picture stays with that picture, whatever is written around it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsin.core.conversation import Conversation, Detail, MediaRef, Message, TextPart
from opsin.local_model import load_local_model
from opsin.prompt.build import PromptBuilder
from opsin.prompt.template import ChatTemplate
from opsin.prompt.tokenizer import Tokenizer
from opsin.settings import load_settings
from opsin.vision.plan import Size, VisionPlan, planned
from tests.tokenizers import GEMMA3, KINDS

PICTURE = MediaRef("data:", Detail.AUTO, "")
DEMO = load_local_model(load_settings({}))
PLAN = planned(DEMO.family, Size(1, 1), Detail.AUTO)


@dataclass(frozen=True, slots=True)
class Model:
    """What turns a conversation into ids."""

    tokenizer: Tokenizer
    builder: PromptBuilder
    placeholder: str

    @property
    def image_id(self) -> int:
        token_id = self.tokenizer.token_id(self.placeholder)
        assert token_id is not None
        return token_id

    def plans(self, *image_tokens: int) -> list[VisionPlan]:
        """A slot of each length, by which its picture is known again."""
        return [replace(PLAN, image_tokens=count, slot=self.placeholder * count) for count in image_tokens]

    def added(self, conversation: Conversation, plans: list[VisionPlan]) -> list[int]:
        """The ids of added tokens in the prompt, in order."""
        ids = self.builder.build(conversation, plans).ids
        return [token_id for token_id in ids if token_id in self.tokenizer.added_token_ids]

    def slots(self, conversation: Conversation, plans: list[VisionPlan]) -> list[tuple[str, int]]:
        """Each slot's length, with the text before it."""
        found: list[tuple[str, int]] = []
        text: list[int] = []
        for token_id in self.builder.build(conversation, plans).ids:
            if token_id != self.image_id:
                text.append(token_id)
            elif text or not found:
                found.append((self.tokenizer.decode(text, skip_special_tokens=False), 1))
                text = []
            else:
                found[-1] = (found[-1][0], found[-1][1] + 1)
        return found


def _models() -> Iterator[tuple[str, Model]]:
    yield "the demo model", Model(DEMO.tokenizer, DEMO.builder, DEMO.family.image_token)
    for kind in KINDS:
        tokenizer = kind.build()
        image_id = tokenizer.token_id(kind.placeholder)
        assert image_id is not None
        builder = PromptBuilder(tokenizer, ChatTemplate(kind.template, {}), kind.placeholder, image_id)
        yield kind.name, Model(tokenizer, builder, kind.placeholder)


MODELS = dict(_models())


def variants(token: str, other: str) -> Iterator[tuple[str, ...]]:
    """Ways to write a token, as the texts of one or several parts."""
    middle = len(token) // 2
    yield (token,)
    yield (f"{token}{token}",)
    yield (f"a {token} b\n{token}\n\n",)
    yield (token[:middle], token[middle:])  # over two parts
    yield tuple(token)
    yield (f"{token[:middle]} ", f"\n{token[middle:]}")  # for templates that trim
    yield (f"{token[:middle]}{token}{token[middle:]}",)  # nested, to survive whoever deletes the inner one
    yield (f"{token[:middle]}{other}{token[middle:]}",)
    yield (token.upper(), token.lower())
    yield (token.translate(_FULL_WIDTH),)
    yield (f"{token[0]} {token[1:]}", f"{token[:-1]}\t{token[-1]}")
    yield (f"{token[:middle]}\u200b{token[middle:]}", f"{token[:middle]}\u0301{token[middle:]}")
    yield (f"\ue000{token}\ue001", f"\ue0000\ue001{token}")  # what marks could be made of
    yield (f"{{{{ '{token}' }}}}", f"{{% raw %}}{token}")  # templates of templates


_FULL_WIDTH = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}
_EVERY_ROLE = ("system", "user", "assistant", "user")


def conversation(texts: tuple[str, ...], *, hollow: bool = False) -> Conversation:
    """The texts in every role, and between two pictures; ``hollow``: with a word in their place."""
    parts = tuple(TextPart("word" if hollow else text) for text in texts)
    messages = [Message(role, parts) for role in _EVERY_ROLE]
    between = (TextPart("and"), *parts)
    return Conversation((*messages, Message("user", (*parts, PICTURE, *between, PICTURE, *parts))))


@pytest.mark.parametrize("name", MODELS)
def test_every_added_token_in_every_place_and_spelling(name: str) -> None:
    model = MODELS[name]
    tokens = model.tokenizer.added_tokens
    assert len(tokens) >= 4
    plans = model.plans(2, 3)
    for token, other in zip(tokens, [*tokens[1:], tokens[0]], strict=True):
        for texts in variants(token, other):
            plain = model.added(conversation(texts, hollow=True), plans)
            assert model.added(conversation(texts), plans) == plain, texts


@pytest.mark.parametrize("name", MODELS)
def test_slots_stay_with_their_pictures(name: str) -> None:
    model = MODELS[name]
    for token in model.tokenizer.added_tokens:
        parts = (TextPart(f"first{token}"), PICTURE, TextPart(f"second{token}"), PICTURE, TextPart(token))
        talk = Conversation((Message("system", (TextPart(token),)), Message("user", parts)))
        (before, first), (between, second) = model.slots(talk, model.plans(2, 3))
        assert (first, second) == (2, 3)
        assert folded(f"first{token}") in folded(before)
        assert folded(f"second{token}") in folded(between)


def folded(text: str) -> str:
    """Without what tokenizers may change: case, width, and the space that some put before each text."""
    return unicodedata.normalize("NFKC", text).casefold().replace(" ", "")


@pytest.mark.parametrize("name", MODELS)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_texts_made_of_pieces_of_tokens(name: str, data: st.DataObject) -> None:
    model = MODELS[name]
    tokens = model.tokenizer.added_tokens
    cut = st.tuples(st.sampled_from(tokens), st.integers(0, 20), st.integers(0, 20))
    piece = st.one_of(
        st.sampled_from(tokens),
        cut.map(lambda drawn: drawn[0][: drawn[1]]),
        cut.map(lambda drawn: drawn[0][drawn[1] :]),
        st.text(" \n\ue000\ue001<>|", max_size=3),
        st.text(max_size=3),
    )
    text = st.lists(piece, min_size=1, max_size=5).map("".join)
    texts = data.draw(st.lists(text, min_size=1, max_size=4).map(tuple))
    plans = model.plans(2, 3)
    assert model.added(conversation(texts), plans) == model.added(conversation(texts, hollow=True), plans)
    assert [length for _, length in model.slots(conversation(texts), plans)] == [2, 3]


def test_white_space_that_is_an_added_token_stays_itself() -> None:
    """Gemma has tokens for line breaks and runs of spaces; without them a user's lines would be read as bytes."""
    tokenizer = GEMMA3.build()
    ids = tokenizer.encode("a\n\nb   c")
    pieces = [tokenizer.decode([token_id], skip_special_tokens=False) for token_id in ids]
    assert pieces == ["a", "\n\n", "b", "   ", "c"]
    assert tokenizer.encode_plain("a\n\nb   c") == ids
    assert {"\n", "\n\n", "▁▁", "▁▁▁"}.isdisjoint(tokenizer.added_tokens)
