"""What an engine is asked: a conversation as ordered parts, in the order in which the user placed them, or raw text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Role = Literal["system", "user", "assistant", "tool"]  # the last: only towards engines that serve tools

Fields = tuple[tuple[str, bytes], ...]
"""Names and JSON of fields that opsin does not read and an engine does: passed on as they came."""


class Detail(StrEnum):
    """OpenAI's ``detail``, per picture: how many visual tokens a picture may become."""

    AUTO = "auto"
    LOW = "low"
    HIGH = "high"
    ORIGINAL = "original"


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelBounds:
    """Between which numbers of pixels pictures are scaled; the edges are ``size`` of processors that call it so."""

    min_pixels: int | None = None
    max_pixels: int | None = None
    shortest_edge: int | None = None
    longest_edge: int | None = None


UNBOUNDED = PixelBounds()


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text of a message."""

    text: str


FILE_ID = "file-id:"
"""What stands before the id of an uploaded file in the URL of a MediaRef."""


@dataclass(frozen=True, slots=True)
class MediaRef:
    """A picture that is named but not loaded. ``param`` is its place in the request, for error messages.

    ``url`` may also be ``file-id:`` and the id of an uploaded file, or ``sha256:`` and the digest of one.
    """

    url: str
    detail: Detail
    param: str


Part = TextPart | MediaRef


@dataclass(frozen=True, slots=True)
class Message:
    """One message; parts keep the user's order."""

    role: Role
    parts: tuple[Part, ...]
    fields: Fields = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """All messages of a request, and what it asks of the size of their pictures."""

    messages: tuple[Message, ...]
    bounds: PixelBounds = UNBOUNDED
    fields: Fields = ()

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


@dataclass(frozen=True, slots=True)
class RawPrompt:
    """Text or token ids written for one model by a caller whom we trust: special tokens in it are tokens.

    It holds the placeholder once for each of ``pictures``. The slots are expanded; nothing else is added, and no
    chat template is applied. A text with pictures and without any placeholder is not raw after all: see ``as_turn``.
    """

    text: str | tuple[int, ...]
    pictures: tuple[MediaRef, ...]
    bounds: PixelBounds = UNBOUNDED

    @property
    def num_chars(self) -> int:
        """Characters to tokenise."""
        return len(self.text) if isinstance(self.text, str) else 0

    def media(self) -> Iterator[MediaRef]:
        """Every picture, in prompt order."""
        return iter(self.pictures)

    def as_turn(self) -> Conversation:
        """The pictures, then the text, as one turn of a user."""
        assert isinstance(self.text, str), "token ids are not for a template"
        return Conversation((Message("user", (*self.pictures, TextPart(self.text))),), self.bounds)


Prompt = Conversation | RawPrompt
