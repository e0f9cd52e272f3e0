"""Tells a photograph from a drawing, so that nobody judges opsin by what the demo model says of a holiday picture."""

from __future__ import annotations

from opsin.media.pool import RenderPool
from opsin.media.types import MediaBytes
from opsin.vision.recipe import Filter, resized
from opsin.vision.size import Size

PHOTO_HINT = (
    "The demo model only knows drawn shapes, numbers and receipts. For photographs use a real model, for example:\n"
    "  opsin ask --model HuggingFaceTB/SmolVLM-256M-Instruct PICTURE QUESTION"
)

_SAMPLE = Size(64, 64)
_MAX_DRAWN_COLOURS = 60
"""Of 4-bit colours in a 64x64 sample: 400 drawings of the demo world had at most 44, photographs have hundreds."""


async def is_photo(renderer: RenderPool, media: MediaBytes) -> bool:
    """Whether a picture has more colours than a drawing would."""
    pixels = (await renderer.render(media, resized(_SAMPLE, Filter.LANCZOS))).pixels
    coarse = bytes(channel & 0xF0 for channel in pixels)
    return len({coarse[i : i + 3] for i in range(0, len(coarse), 3)}) > _MAX_DRAWN_COLOURS
