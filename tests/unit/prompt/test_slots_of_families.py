"""Slots are spliced as ids, and the ids are those of a processor that substitutes strings and tokenises the whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from opsin.core.conversation import Conversation, Detail, MediaRef, Message, Part, RawPrompt, TextPart
from opsin.core.errors import InvalidRequest
from opsin.prompt.build import PromptBuilder
from opsin.prompt.template import ChatTemplate, in_parts
from opsin.vision.gemma3 import Gemma3Family
from opsin.vision.internvl import InternVLFamily
from opsin.vision.llava import LlavaFamily
from opsin.vision.pixtral import PixtralFamily
from opsin.vision.plan import NativeFamily, Size, planned
from opsin.vision.qwen_vl import QwenVLFamily
from tests import tokenizers
from tests.tokenizers import CHATML, TokenizerKind

SIZES = (Size(45, 33), Size(70, 121))
PICTURES = tuple(MediaRef("data:,", Detail.AUTO, f"picture {number}") for number in range(2))
TEXTS = ("What is it?", "\n\nTwo lines\n", "  ", "a <image> b <start_of_image>", "")


@dataclass(frozen=True)
class Case:
    """``written`` is what the family's processor puts in place of a picture's placeholder, from rows and columns."""

    family: NativeFamily
    kind: TokenizerKind
    template: str
    written: tuple[str, str]


def _case(family: NativeFamily, kind: TokenizerKind, *written: str, template: str | None = None) -> Case:
    first, second = written
    return Case(family, kind, template or kind.template, (first, second))


GEMMA = "\n\n<start_of_image>" + "<image_soft_token>" * 3 + "<end_of_image>\n\n"
CASES = {
    "gemma3": _case(Gemma3Family(tokens_per_view=3, max_crops=1), tokenizers.GEMMA3, GEMMA, GEMMA),
    "internvl": _case(
        InternVLFamily(tile_side=64, tokens_per_tile=2, max_tiles=2),
        tokenizers.INTERNVL,
        "<img>" + "<IMG_CONTEXT>" * 2 + "</img>",
        "<img>" + "<IMG_CONTEXT>" * 6 + "</img>",
        template=CHATML % "<IMG_CONTEXT>\n",
    ),
    "llava": _case(LlavaFamily(tokens_per_view=5), tokenizers.LLAVA, "<image>" * 5, "<image>" * 5),
    "pixtral": _case(
        PixtralFamily(longest_edge=64, factor=16),
        tokenizers.PIXTRAL,
        "[IMG][IMG][IMG][IMG_BREAK]" * 2 + "[IMG][IMG][IMG][IMG_END]",
        "[IMG][IMG][IMG][IMG_BREAK]" * 3 + "[IMG][IMG][IMG][IMG_END]",
    ),
    "qwen": _case(
        QwenVLFamily(patch_size=8, min_pixels=256, max_pixels=4096),
        tokenizers.QWEN,
        "<|image_pad|>" * 6,
        "<|image_pad|>" * 15,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_ids_and_price_are_those_of_the_whole_text(name: str) -> None:
    case, tokenizer, builder = CASES[name], CASES[name].kind.build(), _builder(CASES[name])
    template = ChatTemplate(case.template, {})
    for text in TEXTS:
        if any(token in text for token in tokenizer.added_tokens):
            continue  # stays text, which a processor does not see to: see test_text_stays_text
        for parts in _orders(TextPart(text)):
            shown = [part for part in parts if isinstance(part, MediaRef)]
            plans = [planned(case.family, size, num_pictures=len(shown)) for size in SIZES[: len(shown)]]
            tokenised = builder.tokenise(_conversation(parts))
            rendered = template.render([in_parts(message, str) for message in _conversation(parts).messages])
            between = rendered.split(case.family.placeholder.token)
            slots = (*case.written[: len(shown)], "")
            expected = tokenizer.encode("".join(text + slot for text, slot in zip(between, slots, strict=True)))
            assert list(builder.expand(tokenised, plans).ids) == expected, (name, text, len(shown))
            assert tokenised.text_tokens + sum(plan.prompt_tokens for plan in plans) == len(expected)


def test_a_raw_prompt_brings_placeholders_and_no_image_tokens() -> None:
    builder = _builder(CASES["gemma3"])
    raw = RawPrompt("<start_of_image> What?", (PICTURES[0],))
    chat = builder.tokenise(_conversation([PICTURES[0], TextPart(" What?")]))
    assert "\n\n<start_of_image>\n\n" in builder.tokenise(raw).text
    assert "\n\n<start_of_image>\n\n" in chat.text
    with pytest.raises(InvalidRequest, match="image tokens of its own"):
        builder.tokenise(RawPrompt("<start_of_image><image_soft_token>", (PICTURES[0],)))


def _builder(case: Case) -> PromptBuilder:
    tokenizer, family = case.kind.build(), case.family
    image_token_id = tokenizer.token_id(family.image_token)
    assert image_token_id is not None
    return PromptBuilder(
        tokenizer, ChatTemplate(case.template, {}), family.image_token, image_token_id, family.placeholder
    )


def _orders(text: TextPart) -> Iterator[list[Part]]:
    yield [PICTURES[0], text]
    yield [text, *PICTURES]
    yield [*PICTURES, text]


def _conversation(parts: list[Part]) -> Conversation:
    return Conversation((Message("user", tuple(parts)),))
