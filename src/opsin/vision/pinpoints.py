"""Choosing a canvas out of a list and seeing how much of it a picture fills: LLaVA-NeXT, OneVision, DeepSeek-VL2.

The arithmetic, floating point included, is that of ``select_best_resolution`` in Transformers'
``image_processing_utils.py`` and of ``_get_unpadded_features`` in ``processing_llava_next.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from opsin.vision.plan import Size


def best_canvas(size: Size, canvases: Iterable[Size]) -> Size:
    """The canvas that keeps most of the picture's pixels; of those, the one that wastes least; of those, the first."""
    best, most_kept, least_wasted = Size(0, 0), -1, 0
    for canvas in canvases:
        scale = min(canvas.width / size.width, canvas.height / size.height)
        kept = min(int(size.width * scale) * int(size.height * scale), size.area)
        wasted = canvas.area - kept
        if kept > most_kept or (kept == most_kept and wasted < least_wasted):
            best, most_kept, least_wasted = canvas, kept, wasted
    return best


def fitted(size: Size, canvas: Size) -> Size:
    """The picture scaled into a canvas; the side that does not touch is rounded up."""
    by_width, by_height = canvas.width / size.width, canvas.height / size.height
    if by_width < by_height:
        return Size(canvas.width, min(math.ceil(size.height * by_width), canvas.height))
    return Size(min(math.ceil(size.width * by_height), canvas.width), canvas.height)


def without_padding(size: Size, grid: Size) -> Size:
    """The part of a grid of features that a picture fills once the padding at both sides is cut off."""
    if size.width / size.height > grid.width / grid.height:
        filled = int(round(size.height * (grid.width / size.width), 7))
        return Size(grid.width, grid.height - (grid.height - filled) // 2 * 2)
    filled = int(round(size.width * (grid.height / size.height), 7))
    return Size(grid.width - (grid.width - filled) // 2 * 2, grid.height)


def below(canvases: Sequence[Size], max_pixels: int) -> tuple[Size, ...]:
    """Those of at most ``max_pixels``; the smallest where all are larger."""
    smallest = min(canvas.area for canvas in canvases)
    return tuple(canvas for canvas in canvases if canvas.area <= max(max_pixels, smallest))


def areas(canvases: Sequence[Size]) -> list[int]:
    """Their distinct areas, ascending."""
    return sorted({canvas.area for canvas in canvases})
