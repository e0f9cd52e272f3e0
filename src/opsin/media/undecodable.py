"""The ways in which bytes of an accepted format turn out not to be a picture, with one fixed sentence each.

The sentences are ours, never the decoder's: a library's text may hold addresses and payload.
"""

from __future__ import annotations

from enum import StrEnum

from opsin.core.errors import Code, MediaUndecodable


class Failure(StrEnum):
    """The codes of ``MediaUndecodable``."""

    TRUNCATED = Code.IMAGE_TRUNCATED
    UNDECODABLE = Code.IMAGE_UNDECODABLE
    TIMEOUT = Code.IMAGE_DECODE_TIMEOUT
    MEMORY = Code.IMAGE_DECODE_MEMORY
    UNSUPPORTED = Code.IMAGE_FEATURE_UNSUPPORTED


_MESSAGES = {
    Failure.TRUNCATED: "The picture's data ends before the picture does.",
    Failure.UNDECODABLE: "The picture's data is damaged and cannot be decoded.",
    Failure.TIMEOUT: "Decoding the picture took longer than the limit.",
    Failure.MEMORY: "Decoding the picture needs more memory than the limit.",
    Failure.UNSUPPORTED: "The picture uses a feature of its format that is not supported.",
}


def undecodable(failure: Failure, param: str | None = None) -> MediaUndecodable:
    """The error for ``failure``. ``param`` is filled in by the caller that knows the request."""
    return MediaUndecodable(_MESSAGES[failure], code=Code(failure), param=param)
