"""Pixel work as data, so that the sandbox that runs it knows no model.

A recipe is a list of views. Each starts from the upright RGB picture, does its steps in turn, and is cut into equal
tiles. Views that begin with the same steps share their result. Every size is stated, none follows from pixels, so what
a recipe costs is known before it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from opsin.vision.size import Size

Colour = tuple[int, int, int]
BLACK: Colour = (0, 0, 0)


class Filter(StrEnum):
    """How pixels are weighted when a picture is resized; Pillow's filters, which all average when they shrink."""

    NEAREST = "nearest"
    LANCZOS = "lanczos"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"


class Resize(msgspec.Struct, frozen=True, tag="resize"):
    """To a size, whatever that does to the shape."""

    size: Size
    filter: Filter


class Window(msgspec.Struct, frozen=True, tag="window"):
    """What a window of ``size`` shows whose corner stands at ``left``, ``top``: a crop, a canvas, or both.

    Offsets may be negative. What lies outside of the picture is of one colour.
    """

    left: int
    top: int
    size: Size
    outside: Colour = BLACK


Step = Resize | Window


@dataclass(frozen=True, slots=True)
class View:
    """Steps from the whole picture, then a cut into ``columns`` x ``rows`` tiles in reading order."""

    steps: tuple[Step, ...]
    columns: int = 1
    rows: int = 1


@dataclass(frozen=True, slots=True)
class RenderRecipe:
    """All tiles of one picture, each of size ``tile``, in the order of ``views``."""

    tile: Size
    views: tuple[View, ...]

    @property
    def num_tiles(self) -> int:
        """Tiles of all views."""
        return sum(view.columns * view.rows for view in self.views)

    def check(self, upright: Size) -> None:
        """Raises ValueError when a view of a picture of size ``upright`` cannot be cut into its tiles."""
        for view in self.views:
            last = view.steps[-1].size if view.steps else upright
            if last != Size(view.columns * self.tile.width, view.rows * self.tile.height):
                raise ValueError(f"{view} of a picture of {upright} gives no tiles of {self.tile}")

    def work(self, upright: Size) -> Iterator[Size]:
        """Every picture that its execution makes, those between the two passes of a resize among them."""
        beginnings = {(view.steps[:end], view.steps[end]) for view in self.views for end in range(len(view.steps))}
        for before, step in beginnings:
            yield step.size
            if isinstance(step, Resize):
                yield Size(step.size.width, before[-1].size.height if before else upright.height)


def whole(size: Size) -> RenderRecipe:
    """The picture as it is: one tile."""
    return RenderRecipe(size, (View(()),))


def resized(size: Size, resampling: Filter) -> RenderRecipe:
    """The picture at another size, uncut: one tile."""
    return RenderRecipe(size, (View((Resize(size, resampling),)),))


def middle(size: Size, edge: int, crop: Size, resampling: Filter) -> RenderRecipe:
    """The middle of the picture, whose shorter side was scaled to ``edge``; the other one is truncated."""
    long = int(edge * max(size.width, size.height) / min(size.width, size.height))
    scaled = Size(edge, long) if size.width <= size.height else Size(long, edge)
    window = Window((scaled.width - crop.width) // 2, (scaled.height - crop.height) // 2, crop)
    return RenderRecipe(crop, (View((Resize(scaled, resampling), window)),))


def squared(size: Size, side: int, resampling: Filter, colour: Colour) -> RenderRecipe:
    """The whole picture in the middle of a square of one colour, at ``side`` x ``side``."""
    edge = max(size.width, size.height)
    window = Window(-((edge - size.width) // 2), -((edge - size.height) // 2), Size(edge, edge), colour)
    to_side = Resize(Size(side, side), resampling)
    return RenderRecipe(to_side.size, (View((to_side,) if size.width == size.height else (window, to_side)),))


def on_canvas(scaled: Size, canvas: Size, tile: Size, resampling: Filter, *, centred: bool) -> View:
    """The picture scaled onto a black canvas, in its middle or at its corner, and cut."""
    left, top = (canvas.width - scaled.width) // 2, (canvas.height - scaled.height) // 2
    window = Window(-left, -top, canvas) if centred else Window(0, 0, canvas)
    return View((Resize(scaled, resampling), window), canvas.width // tile.width, canvas.height // tile.height)
