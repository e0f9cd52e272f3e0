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
from typing import Generic, TypeVar, cast

import msgspec

from opsin.core.conversation import Conversation, Fields, Message, Part, TextPart
from opsin.core.errors import Code, InvalidRequest
from opsin.core.warnings import AnswerWarning, WarningCode
from opsin.prompt.special_tokens import SpecialTokens

JOINER = "\u2060"
"""Word joiner: no width, no line break, part of no token. Tokenizers look for special tokens in the text as it is."""


T = TypeVar("T")

_INTO_THE_PROMPT = frozenset({"tools", "functions", "documents", "chat_template_kwargs"})
"""Fields of a request whose texts a template writes into the prompt, as it does all fields of a message."""


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
class _Mended(Generic[T]):
    """Something that spells no special token any more, and for each that it did the field in which it stood."""

    whole: T
    broken: list[str]


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
        fields = self._fields(conversation.fields, "", _INTO_THE_PROMPT)
        messages = [self._message(message, number) for number, message in enumerate(conversation.messages)]
        broken = [*fields.broken, *(param for message in messages for param in message.broken)]
        if not broken:
            return Guarded(conversation)
        whole = replace(conversation, messages=tuple(message.whole for message in messages), fields=fields.whole)
        return Guarded(whole, (_warning(len(broken), broken[0]),))

    def _message(self, message: Message, number: int) -> _Mended[Message]:
        param = f"messages.{number}.content"
        places = self._places(message)
        if places and self._on_special_tokens is OnSpecialTokens.REJECT:
            first = places[0]
            raise _refusal(f"part {first.part} spells a special token at character {first.character}", param)
        fields = self._fields(message.fields, f"messages.{number}.", None)
        if not places and not fields.broken:
            return _Mended(message, [])
        mended = replace(_broken(message, places), fields=fields.whole)
        return _Mended(mended, [*([param] * len(places)), *fields.broken])

    def _fields(self, fields: Fields, prefix: str, names: frozenset[str] | None) -> _Mended[Fields]:
        """All JSON fields, or those of ``names``."""
        whole: list[tuple[str, bytes]] = []
        broken: list[str] = []
        for name, value in fields:
            if names is None or name in names:
                texts = _Texts(self._tokens)
                mended = texts.mended(msgspec.json.decode(value))
                if texts.num_broken and self._on_special_tokens is OnSpecialTokens.REJECT:
                    raise _refusal("a text of it spells a special token", prefix + name)
                broken += [prefix + name] * texts.num_broken
                value = msgspec.json.encode(mended) if texts.num_broken else value
            whole.append((name, value))
        return _Mended(tuple(whole), broken)

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


class _Texts:
    """Breaks special tokens up in every text of a JSON value, keys too, as templates write these as well."""

    def __init__(self, tokens: SpecialTokens) -> None:
        self._tokens = tokens
        self.num_broken = 0

    def mended(self, value: object) -> object:
        """The same value without special tokens."""
        match value:
            case str():
                return self._text(value)
            case dict():
                entries = cast("dict[str, object]", value).items()
                return {self._text(key): self.mended(entry) for key, entry in entries}
            case list():
                return [self.mended(entry) for entry in cast("list[object]", value)]
            case _:
                return value

    def _text(self, text: str) -> str:
        cuts = [start + 1 for start in self._tokens.starts(text)]
        self.num_broken += len(cuts)
        return _with_joiners(text, cuts)


def _refusal(where: str, param: str) -> InvalidRequest:
    return InvalidRequest(
        f"{where}, and such texts are refused here (special_tokens_in_text)",
        code=Code.SPECIAL_TOKENS_IN_TEXT,
        param=param,
    )
