"""The ways in which bytes of an accepted format turn out not to be a picture, with one fixed sentence each.

The sentences are ours, never the decoder's: a library's text may hold addresses and payload.
"""

from __future__ import annotations

from enum import StrEnum

from opsin.core.errors import MediaUndecodable


class Failure(StrEnum):
    """Error codes of ``MediaUndecodable``."""

    TRUNCATED = "image_truncated"
    UNDECODABLE = "image_undecodable"
    TIMEOUT = "image_decode_timeout"
    MEMORY = "image_decode_memory"


_MESSAGES = {
    Failure.TRUNCATED: "The picture's data ends before the picture does.",
    Failure.UNDECODABLE: "The picture's data is damaged and cannot be decoded.",
    Failure.TIMEOUT: "Decoding the picture took longer than the limit.",
    Failure.MEMORY: "Decoding the picture needs more memory than the limit.",
}


def undecodable(failure: Failure, param: str | None = None) -> MediaUndecodable:
    """The error for ``failure``. ``param`` is filled in by the caller that knows the request."""
    return MediaUndecodable(_MESSAGES[failure], code=failure.value, param=param)
