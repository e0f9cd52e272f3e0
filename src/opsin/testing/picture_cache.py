"""vLLM's cache of processed pictures as a client sees it: a ``uuid`` stands for bytes that came with it before."""

from __future__ import annotations

import msgspec

from opsin.testing.script import Failure

_NULL = b"null"


class _Part(msgspec.Struct):
    image_url: msgspec.Raw = msgspec.Raw(_NULL)
    uuid: str | None = None

    @property
    def has_bytes(self) -> bool:
        """Whether it is more than a name."""
        return bytes(self.image_url) != _NULL


class _Message(msgspec.Struct):
    content: list[_Part] | str = ""


class _Body(msgspec.Struct):
    messages: list[_Message]


class PictureCache:
    """Names of pictures that came with their bytes."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def first_unknown(self, body: bytes | bytearray) -> int | None:
        """Which picture, from 0, has neither bytes nor a known name; None if there is none, and the others are kept."""
        messages = msgspec.json.decode(body, type=_Body).messages
        parts = [part for message in messages if not isinstance(message.content, str) for part in message.content]
        pictures = [part for part in parts if part.has_bytes or part.uuid is not None]
        for index, picture in enumerate(pictures):
            if not picture.has_bytes and picture.uuid not in self.names:
                return index
        self.names |= {picture.uuid for picture in pictures if picture.uuid is not None}
        return None


def picture_gone(index: int) -> Failure:
    """What vLLM 0.32 answers, with 400."""
    text = f"Cache miss for image at index {index} but data is not provided."
    return Failure(message=text, type="BadRequestError", code=400)
