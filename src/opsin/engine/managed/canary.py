"""The first requests of an engine: one text, and one picture if it shall see. Knows how to ask, not whom."""

from __future__ import annotations

import hashlib
import struct
import time
import zlib
from collections.abc import AsyncIterator

from opsin.core.conversation import Conversation, Detail, MediaRef, Message, Part, TextPart
from opsin.core.errors import Code, ConfigError, OpsinError
from opsin.engine.api import ChatPrompt, Engine, GenerationRequest, Picture, SamplingParams
from opsin.media.types import ImageFormat, ImageHeader, MediaBytes
from opsin.vision.plan import Size

SIDE = 64
"""Pixels; no processor refuses it as too small."""

_TEXT = (TextPart("Say yes."),)


async def try_out(engine: Engine, *, sees: bool) -> AsyncIterator[str]:
    """Asks one thing after the other; says before each what is waited for.

    Raises:
        ConfigError: it answers a text and refuses the picture.
        OpsinError: it does not answer.
    """
    yield "an answer to a text"
    await _ask(engine, _TEXT, ())
    if sees:
        yield "an answer to a picture"
        await _show(engine)


async def _show(engine: Engine) -> None:
    data = _png()
    header = ImageHeader(ImageFormat.PNG, Size(SIDE, SIDE), 1, 1)
    digest = hashlib.sha256(data).hexdigest()
    picture = Picture(key=digest, image_tokens=None, num_tiles=None, media=MediaBytes(data, digest, header, "canary"))
    try:
        await _ask(engine, (MediaRef("", Detail.AUTO, "canary"), *_TEXT), (picture,))
    except OpsinError as error:
        if error.code is Code.ENGINE_DIED:
            raise
        raise ConfigError(
            f"it answers a text, but no picture: {error.message}; does the model read pictures, and is its projector "
            "there? To serve texts alone say --limit-mm-per-prompt '{\"image\": 0}'"
        ) from None


async def _ask(engine: Engine, parts: tuple[Part, ...], pictures: tuple[Picture, ...]) -> None:
    request = GenerationRequest(
        id="canary",
        scope="canary",
        prompt=ChatPrompt(Conversation((Message("user", parts),))),
        pictures=pictures,
        sampling=SamplingParams(temperature=0.0, max_tokens=2),
        submitted_at=time.monotonic(),
    )
    async for _ in engine.submit(request):
        pass


def _png() -> bytes:
    """A grey square."""
    rows = (b"\0" + b"\x80" * (3 * SIDE)) * SIDE
    size = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", size) + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
