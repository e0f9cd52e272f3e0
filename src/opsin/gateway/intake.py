"""From the bytes of a request body to a validated request, however large the body is.

A small body is parsed where it is. Of any other the pictures are taken out first, and what is left is text; of a large
one beside the event loop, so that neither JSON nor base64 of strangers ever holds it up.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import Protocol

from opsin.core.errors import BodyTooLarge
from opsin.media.config import MediaConfig
from opsin.media.lift import lift, without_base64
from opsin.media.types import Lift, LiftedMedia
from opsin.protocol.request import ChatCompletionRequest, parse_request

SMALL_BODY_BYTES = 16 * 2**10
LARGE_BODY_BYTES = 320 * 2**10
"""A picture of 200 KB in base64 still fits: taking it out, hashing it and reading its header take 0.25 ms."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How the requests of one model are read.

    ``keep_base64``: for an engine that is sent the pictures as base64 again. ``relay``: for one that is sent fields
    which opsin does not read.
    """

    keep_base64: bool
    relay: bool


class Readings(Protocol):
    """Knows the models."""

    def reading(self, body: bytes | bytearray) -> Reading:
        """For the model that a body names. Raises nothing, whatever the body is."""
        ...


@dataclass(frozen=True, slots=True)
class Taken:
    """A request, and its pictures as far as they were loaded with it."""

    request: ChatCompletionRequest
    media: LiftedMedia = field(default_factory=dict[str, Lift])


class Intake:
    """Parses bodies."""

    def __init__(self, media: MediaConfig, models: Readings, *, max_text_bytes: int) -> None:
        self._media = media
        self._models = models
        self._max_text_bytes = max_text_bytes

    async def take(self, body: bytes | bytearray) -> Taken:
        """Parses and validates.

        Raises:
            InvalidRequest: as ``parse_request``.
            BodyTooLarge: too much is left without the pictures.
        """
        if len(body) <= SMALL_BODY_BYTES:
            return self._take_whole(body)
        if len(body) <= LARGE_BODY_BYTES:
            return self._take_apart(body)
        return await asyncio.to_thread(self._take_apart, body)

    def _take_whole(self, body: bytes | bytearray) -> Taken:
        return Taken(parse_request(body, relay=self._models.reading(body).relay))

    def _take_apart(self, body: bytes | bytearray) -> Taken:
        marker = f"lifted-{secrets.token_hex(8)}"  # not to be guessed: a client may write any URL
        lifted = lift(body, marker, self._media.max_image_bytes, self._media.formats)
        self._check_text(len(lifted.body))
        reading = self._models.reading(lifted.body)
        request = parse_request(lifted.body, relay=reading.relay)
        if request.relayed is not None and request.relayed.mentions(marker.encode()):
            return self._take_whole(body)  # what is not ours to read goes on as it came
        return Taken(request, lifted.media if reading.keep_base64 else without_base64(lifted.media))

    def _check_text(self, num_bytes: int) -> None:
        if num_bytes > self._max_text_bytes:
            raise BodyTooLarge(
                f"the request has {num_bytes} bytes without its pictures; the limit is {self._max_text_bytes} "
                "(max_text_bytes)"
            )
