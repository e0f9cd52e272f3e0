"""The resize of Qwen-VL and GLM-V: both sides become multiples of a factor, the area stays between two bounds.

The arithmetic, floating point included, is that of ``smart_resize`` in Transformers'
``image_processing_pil_qwen2_vl.py`` and ``image_processing_pil_glm4v.py``; GLM's bounds are for a stack of frames.
"""

from __future__ import annotations

import math

from opsin.vision.plan import Size
from opsin.vision.reading import refuse_shape

MAX_RATIO = 200
"""One side over the other; the processors refuse more."""


def check_ratio(original: Size, scaled: Size) -> None:
    """Raises MediaError, which names ``original``, when ``scaled`` is over MAX_RATIO."""
    if max(scaled.width, scaled.height) / min(scaled.width, scaled.height) > MAX_RATIO:
        raise refuse_shape(original, f"takes one side up to {MAX_RATIO} times the other")


def smart_resize(size: Size, factor: int, min_pixels: int, max_pixels: int, num_frames: int = 1) -> Size:
    """The size that the encoder sees; the bounds are over ``num_frames``."""
    width, height = size.width, size.height
    rounded = Size(round(width / factor) * factor, round(height / factor) * factor)
    pixels = num_frames * height * width
    if num_frames * rounded.area > max_pixels:
        shrink = math.sqrt(pixels / max_pixels)
        return Size(_floor_to(width / shrink, factor), _floor_to(height / shrink, factor))
    if num_frames * rounded.area < min_pixels:
        grow = math.sqrt(min_pixels / pixels)
        return Size(math.ceil(width * grow / factor) * factor, math.ceil(height * grow / factor) * factor)
    return rounded


def _floor_to(length: float, factor: int) -> int:
    return max(factor, math.floor(length / factor) * factor)
