"""Text stays text towards engines that tokenise it themselves.

Such an engine writes messages into its template and tokenises the whole, so that an ``<|im_end|>`` of a user would end
the user's turn, and an ``<image>`` would take a picture's place. Here the string is broken up by a character that
nobody sees, or the request is refused. Knows no engine; where we own the tokenizer, see :mod:`opsin.prompt.build`.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate, pairwise

from opsin.core.conversation import Conversation, Message, Part, TextPart
from opsin.core.errors import Code, InvalidRequest
from opsin.core.warnings import AnswerWarning, WarningCode
from opsin.prompt.special_tokens import SpecialTokens

JOINER = "\u2060"
"""Word joiner: no width, no line break, part of no token. Tokenizers look for special tokens in the text as it is."""


class OnSpecialTokens(StrEnum):
    """What becomes of a text that spells a special token."""

    BREAK = "break"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Guarded:
    """A conversation that spells no special token, and what the answer has to say about it."""

    conversation: Conversation
    warnings: tuple[AnswerWarning, ...] = ()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a special token begins: a character of a part of a message."""

    part: int
    character: int


class TextGuard:
    """Keeps special tokens out of conversations."""

    def __init__(self, tokens: SpecialTokens, on_special_tokens: OnSpecialTokens) -> None:
        self._tokens = tokens
        self._on_special_tokens = on_special_tokens

    def guard(self, conversation: Conversation) -> Guarded:
        """Linear in the text.

        Raises:
            InvalidRequest: a text spells a special token, and such texts are refused; names the place, not the token.
        """
        found = {number: self._places(message) for number, message in enumerate(conversation.messages)}
        hit = [number for number, places in found.items() if places]
        if not hit:
            return Guarded(conversation)
        param = f"messages.{hit[0]}.content"
        if self._on_special_tokens is OnSpecialTokens.REJECT:
            raise _refusal(found[hit[0]][0], param)
        messages = (_broken(message, found[number]) for number, message in enumerate(conversation.messages))
        return Guarded(
            replace(conversation, messages=tuple(messages)), (_warning(sum(map(len, found.values())), param),)
        )

    def _places(self, message: Message) -> list[_Place]:
        """Also over the border of two texts, as templates may write these without anything between, and trimmed."""
        texts = [(index, part.text) for index, part in enumerate(message.parts) if isinstance(part, TextPart)]
        trimmed = [text.strip() for _, text in texts]
        begins = [0, *accumulate(map(len, trimmed))]
        places: list[_Place] = []
        for start in self._tokens.starts("".join(trimmed)):
            number = bisect_right(begins, start) - 1
            index, text = texts[number]
            num_trimmed = len(text) - len(text.lstrip())
            places.append(_Place(index, start - begins[number] + num_trimmed))
        return places


def _broken(message: Message, places: list[_Place]) -> Message:
    """The message with a joiner after the first character of every token."""
    cuts: dict[int, list[int]] = {}
    for place in places:
        cuts.setdefault(place.part, []).append(place.character + 1)
    parts: list[Part] = [
        TextPart(_with_joiners(part.text, cuts[index])) if isinstance(part, TextPart) and index in cuts else part
        for index, part in enumerate(message.parts)
    ]
    return replace(message, parts=tuple(parts))


def _with_joiners(text: str, cuts: list[int]) -> str:
    return JOINER.join(text[begin:end] for begin, end in pairwise([0, *cuts, len(text)]))


def _warning(num_found: int, param: str) -> AnswerWarning:
    message = f"Special tokens in texts were broken up by U+2060, so that they stay text: {num_found}, the first here."
    return AnswerWarning(WarningCode.SPECIAL_TOKENS_BROKEN, message, param)


def _refusal(place: _Place, param: str) -> InvalidRequest:
    return InvalidRequest(
        f"part {place.part} spells a special token at character {place.character}, and such texts are refused here "
        "(special_tokens_in_text)",
        code=Code.SPECIAL_TOKENS_IN_TEXT,
        param=param,
    )
