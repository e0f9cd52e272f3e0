"""What an answer warns of: it is right for what was understood, and that is perhaps not what was meant."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self


class WarningCode(StrEnum):
    """For programs: the word on the wire, and what happened. ``docs/errors.md`` is written from here as well."""

    meaning: str

    def __new__(cls, word: str, meaning: str) -> Self:
        code = str.__new__(cls, word)
        code._value_ = word
        code.meaning = meaning
        return code

    MEDIA_TYPE_MISMATCH = "media_type_mismatch", "a picture is not what its media type says; its bytes decided"
    IMAGE_DOWNSCALED = "image_downscaled", "a picture is read smaller than its `detail` asks for: more would not fit"
    IMAGE_CONVERTED = "image_converted", "the engine would not read a picture's file right, so it was written anew"
    SPECIAL_TOKENS_BROKEN = (
        "special_tokens_broken",
        "a text spells special tokens; a hidden character breaks them up",
    )


@dataclass(frozen=True, slots=True)
class AnswerWarning:
    """One warning. ``message`` and ``param`` are under the same rules as those of errors."""

    code: WarningCode
    message: str
    param: str | None = None
