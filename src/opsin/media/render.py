"""Pixels: executes a recipe on a decoded picture. Runs in a worker; Pillow and stdlib only.

``execute`` does the steps of a recipe with Pillow's resampling on uint8, as Transformers' image processors (PIL
backend) do, so the tiles are identical. Nothing here knows a model, a request or a limit.
"""

from __future__ import annotations

from collections.abc import Iterator

from PIL import Image

from opsin.media import fast
from opsin.media.decode import upright_rgb
from opsin.media.types import ImageHeader, RenderMode
from opsin.vision.recipe import BLACK, Filter, RenderRecipe, Step, View, Window
from opsin.vision.size import Size

_PILLOWS = {resampling: Image.Resampling[resampling.name] for resampling in Filter}


def render(data: bytes, header: ImageHeader, recipe: RenderRecipe, mode: RenderMode = RenderMode.EXACT) -> bytes:
    """The tiles of the picture, see ``RenderedPicture.pixels``. Raises MediaUndecodable."""
    if mode is RenderMode.EXACT:
        return execute(upright_rgb(data, header), recipe)
    recipe = fast.shortened(recipe)
    needed = fast.needed(recipe) or header.upright
    picture = upright_rgb(data, header, fast.scale(header.upright, needed))
    return execute(picture, recipe, fast.REDUCING_GAP)


def execute(picture: Image.Image, recipe: RenderRecipe, reducing_gap: float | None = None) -> bytes:
    """Runs a recipe on an upright RGB picture. ``reducing_gap`` is that of Pillow's ``resize``; None is exact."""
    shown = _Steps(picture, reducing_gap)
    tiles = (tile for view in recipe.views for tile in _cut(shown.after(view.steps), view, recipe.tile))
    return b"".join(tile.tobytes() for tile in tiles)


class _Steps:
    """What one picture looks like after some steps; each beginning of a list of steps is done once."""

    def __init__(self, picture: Image.Image, reducing_gap: float | None) -> None:
        self._done: dict[tuple[Step, ...], Image.Image] = {(): picture}
        self._reducing_gap = reducing_gap

    def after(self, steps: tuple[Step, ...]) -> Image.Image:
        if steps not in self._done:
            before = self.after(steps[:-1])
            self._done[steps] = self._step(before, steps[-1])
        return self._done[steps]

    def _step(self, picture: Image.Image, step: Step) -> Image.Image:
        if isinstance(step, Window):
            return _through(picture, step)
        size = (step.size.width, step.size.height)
        if picture.size == size:
            return picture  # Pillow would copy it
        return picture.resize(size, _PILLOWS[step.filter], reducing_gap=self._reducing_gap)


def _through(picture: Image.Image, window: Window) -> Image.Image:
    if window.outside == BLACK:  # with which Pillow fills what a box has outside of the picture
        left, top = window.left, window.top
        return picture.crop((left, top, left + window.size.width, top + window.size.height))
    canvas = Image.new("RGB", (window.size.width, window.size.height), window.outside)
    canvas.paste(picture, (-window.left, -window.top))
    return canvas


def _cut(picture: Image.Image, view: View, tile: Size) -> Iterator[Image.Image]:
    """In reading order."""
    if view.columns == view.rows == 1:
        yield picture
        return
    for row in range(view.rows):
        for column in range(view.columns):
            left, top = column * tile.width, row * tile.height
            yield picture.crop((left, top, left + tile.width, top + tile.height))
