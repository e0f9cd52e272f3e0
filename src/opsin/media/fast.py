"""What ``--render-mode fast`` leaves out: pixels that a recipe would only average away, and resizes on the way.

JPEG is decoded at a half, a quarter or an eighth of its size, which its format allows; other pictures are averaged in
whole blocks. The result differs from the exact one by little, see docs/adr/0007. Knows sizes and recipes, no pixels.
"""

from __future__ import annotations

from dataclasses import replace

from opsin.vision.recipe import RenderRecipe, Resize
from opsin.vision.size import Size

REDUCING_GAP = 2.0
"""Pictures are averaged in whole blocks down to twice the size that is wanted, and only then resized."""

_SHORT_OF = 16
"""A picture may be made smaller than needed by one part in 16, and is then enlarged: without it a photo of 4032 pixels
would not be decoded at half of its size for 2048."""

_JPEG_SCALES = (8, 4, 2)


def shortened(recipe: RenderRecipe) -> RenderRecipe:
    """Of resizes that all views begin with, one right after the other, only the last."""
    first, *others = recipe.views
    beginning = first.steps[:2]
    if len(beginning) < 2 or not all(isinstance(step, Resize) for step in beginning):
        return recipe
    if any(view.steps[:2] != beginning for view in others):
        return recipe
    return shortened(replace(recipe, views=tuple(replace(view, steps=view.steps[1:]) for view in recipe.views)))


def needed(recipe: RenderRecipe) -> Size | None:
    """The sides that the picture is resized to at first; None where a view shows its pixels, or cuts them."""
    sizes: list[Size] = []
    for view in recipe.views:
        if not view.steps or not isinstance(view.steps[0], Resize):
            return None
        sizes.append(view.steps[0].size)
    return Size(max(size.width for size in sizes), max(size.height for size in sizes))


def factors(size: Size, target: Size) -> tuple[int, int]:
    """By what each side can be divided and still be about ``target``."""
    return _factor(size.width, target.width), _factor(size.height, target.height)


def jpeg_scale(size: Size, target: Size) -> int:
    """The fraction of both sides at which a JPEG decoder may decode: 1, 2, 4 or 8."""
    smaller = min(factors(size, target))
    return next((scale for scale in _JPEG_SCALES if scale <= smaller), 1)


def _factor(side: int, target: int) -> int:
    return max(side * _SHORT_OF // (target * (_SHORT_OF - 1)), 1)
