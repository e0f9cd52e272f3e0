"""Pixel work for tests that look at pictures and not at models."""

from __future__ import annotations

from opsin.vision.recipe import Filter, RenderRecipe, Resize, View
from opsin.vision.size import Size

_CANVAS = Resize(Size(8, 8), Filter.LANCZOS)
_OVERVIEW = Resize(Size(4, 4), Filter.LANCZOS)

CUT = RenderRecipe(_OVERVIEW.size, (View((_CANVAS,), 2, 2), View((_CANVAS, _OVERVIEW))))
"""Five tiles."""
