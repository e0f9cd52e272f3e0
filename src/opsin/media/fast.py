"""What ``--render-mode fast`` leaves out: pixels that a recipe would only average away, and resizes on the way.

JPEG is decoded at a half, a quarter or an eighth of its sides, which its format allows; of other pictures whole blocks
are averaged. The result differs from the exact one by little, see docs/adr/0007. Knows sizes and recipes, no pixels.
"""

from __future__ import annotations

from dataclasses import replace

from opsin.vision.recipe import RenderRecipe, Resize
from opsin.vision.size import Size

REDUCING_GAP = 2.0
"""Pictures are averaged in whole blocks down to twice the size that is wanted, and only then resized."""

_SCALES = {8: 2.0, 4: 2.0, 2: 15 / 16}
"""Fractions of the sides, and how many times the wanted side must at least be left. What is left twice loses next to
nothing; a half may be up to 1/16 short, without which a photo of 4032 pixels would not be halved for 2048."""


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


def scale(size: Size, target: Size) -> int:
    """The fraction of both sides that is enough for ``target``: 1, 2, 4 or 8."""
    ratio = min(size.width / target.width, size.height / target.height)
    return next((scale for scale, left in _SCALES.items() if ratio >= scale * left), 1)
