"""What the pool and its workers say to each other: msgpack messages, each after its length as four bytes.

A task says how long the picture is that follows it: that is sent as it is, because copying 32 MiB into a message would
hold up the event loop for 40 ms.

The header travels with the picture, so a worker never guesses a format. A worker that decodes strangers' data may be
taken over by it, so the pool reads its answers as strangers' data too: bounded, typed, and checked against the recipe.
"""

from __future__ import annotations

import struct

import msgspec

from opsin.media.confine import Level
from opsin.media.encoding import Encoding
from opsin.media.types import ImageFormat, ImageHeader, RenderMode
from opsin.media.undecodable import Failure
from opsin.vision.recipe import RenderRecipe
from opsin.vision.size import Size

LENGTH = struct.Struct("<I")


class Setup(msgspec.Struct, frozen=True, tag="setup"):
    """What a worker is told first. ``memory_bytes`` beyond the idle interpreter's, ``cpu_s`` for each task."""

    memory_bytes: int
    cpu_s: int
    formats: tuple[ImageFormat, ...]
    mode: RenderMode = RenderMode.EXACT


class RenderTask(msgspec.Struct, frozen=True, tag="render"):
    """One picture to render, or, without a recipe, only to decode completely."""

    num_bytes: int
    header: ImageHeader
    recipe: RenderRecipe | None


class ScaleTask(msgspec.Struct, frozen=True, tag="scale"):
    """One picture to scale down to ``size``, upright, and to write anew; see :func:`opsin.media.scale.scale`."""

    num_bytes: int
    header: ImageHeader
    size: Size
    encoding: Encoding


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The worker has decoded a picture of each format and confined itself, as far as the machine let it."""

    level: Level


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The tiles as in ``RenderedPicture.pixels``; empty when there was no recipe."""

    pixels: bytes


class Written(msgspec.Struct, frozen=True, tag="written"):
    """The file of a scaled picture."""

    data: bytes


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The picture does not decode."""

    failure: Failure


Task = RenderTask | ScaleTask
Answer = Ready | Done | Written | Failed

ANSWER_OVERHEAD_BYTES = 64
"""More than an answer has beside its pixels."""

_encoder = msgspec.msgpack.Encoder()
_setup_decoder = msgspec.msgpack.Decoder(Setup)
_task_decoder = msgspec.msgpack.Decoder(Task)
_answer_decoder = msgspec.msgpack.Decoder(Answer)


def encode(message: Setup | Task | Answer) -> bytes:
    """The message without its length."""
    return _encoder.encode(message)


def decode_setup(payload: bytes) -> Setup:
    """Raises msgspec.MsgspecError."""
    return _setup_decoder.decode(payload)


def decode_task(payload: bytes) -> Task:
    """Raises msgspec.MsgspecError."""
    return _task_decoder.decode(payload)


def decode_answer(payload: bytes | bytearray) -> Answer:
    """Raises msgspec.MsgspecError."""
    return _answer_decoder.decode(payload)
