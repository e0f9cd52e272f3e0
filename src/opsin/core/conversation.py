"""A conversation as ordered parts: text and media, in the order in which the user placed them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Role = Literal["system", "user", "assistant"]


class Detail(StrEnum):
    """OpenAI's ``detail``, per picture: how many visual tokens a picture may become."""

    AUTO = "auto"
    LOW = "low"
    HIGH = "high"
    ORIGINAL = "original"


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text of a message."""

    text: str


@dataclass(frozen=True, slots=True)
class MediaRef:
    """A picture that is named but not loaded. ``param`` is its place in the request, for error messages."""

    url: str
    detail: Detail
    param: str


Part = TextPart | MediaRef


@dataclass(frozen=True, slots=True)
class Message:
    """One message; parts keep the user's order."""

    role: Role
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """All messages of a request."""

    messages: tuple[Message, ...]

    @property
    def num_chars(self) -> int:
        """Characters of all texts."""
        return sum(len(part.text) for message in self.messages for part in message.parts if isinstance(part, TextPart))

    def media(self) -> Iterator[MediaRef]:
        """Every picture, in prompt order."""
        for message in self.messages:
            for part in message.parts:
                if isinstance(part, MediaRef):
                    yield part
