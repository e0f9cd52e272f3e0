"""From the bytes of a request body to a validated request, however large the body is.

A small body is parsed where it is. A large one goes to a sandboxed worker first, which takes the pictures out of it, so
that neither JSON nor base64 of strangers ever holds up the event loop; what is left is text.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import Protocol

from opsin.core.errors import BodyTooLarge
from opsin.media.lift import opened
from opsin.media.messages import Lifted
from opsin.media.types import Lift, LiftedMedia
from opsin.protocol.request import ChatCompletionRequest, parse_request

LARGE_BODY_BYTES = 320 * 2**10
"""A picture of 200 KB in base64 still fits: reading it takes 0.1 ms here, and a worker's answer is far away."""


class Lifter(Protocol):
    """Takes pictures out of bodies apart from this process."""

    async def lift(self, body: bytes, marker: str) -> Lifted:
        """See :func:`opsin.media.lift.lift`. Raises MediaUndecodable, Overloaded."""
        ...


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

    def reading(self, body: bytes) -> Reading:
        """For the model that a body names. Raises nothing, whatever the body is."""
        ...


@dataclass(frozen=True, slots=True)
class Taken:
    """A request, and its pictures as far as they were loaded with it."""

    request: ChatCompletionRequest
    media: LiftedMedia = field(default_factory=dict[str, Lift])


class Intake:
    """Parses bodies."""

    def __init__(self, lifter: Lifter, models: Readings, *, max_text_bytes: int) -> None:
        self._lifter = lifter
        self._models = models
        self._max_text_bytes = max_text_bytes

    async def take(self, body: bytes) -> Taken:
        """Parses and validates.

        Raises:
            InvalidRequest: as ``parse_request``.
            BodyTooLarge: too much is left without the pictures.
            MediaUndecodable, Overloaded: the body could not be taken apart.
        """
        if len(body) <= LARGE_BODY_BYTES:
            return Taken(parse_request(body, relay=self._models.reading(body).relay))
        marker = f"lifted-{secrets.token_hex(8)}"  # not to be guessed: a client may write any URL
        lifted = await self._lifter.lift(body, marker)
        self._check_text(len(lifted.body))
        reading = await asyncio.to_thread(self._models.reading, lifted.body)
        request = await asyncio.to_thread(parse_request, lifted.body, relay=reading.relay)
        return Taken(request, opened(lifted, body, marker, keep_base64=reading.keep_base64))

    def _check_text(self, num_bytes: int) -> None:
        if num_bytes > self._max_text_bytes:
            raise BodyTooLarge(
                f"the request has {num_bytes} bytes without its pictures; the limit is {self._max_text_bytes} "
                "(max_text_bytes)"
            )
