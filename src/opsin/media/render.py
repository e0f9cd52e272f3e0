"""Pixels: executes a recipe on a decoded picture. Runs in a worker; Pillow and stdlib only.

``execute`` does what Transformers' Idefics3 image processor (PIL backend) does to the RGB picture: Pillow's Lanczos on
uint8, step by step, so the tiles are identical. Nothing here knows a model, a request or a limit.
"""

from __future__ import annotations

from PIL import Image

from opsin.media.decode import upright_rgb
from opsin.media.types import ImageHeader
from opsin.vision.plan import RenderRecipe, Size

_Box = tuple[int, int, int, int]


def render(data: bytes, header: ImageHeader, recipe: RenderRecipe) -> bytes:
    """The tiles of the picture, see ``RenderedPicture.pixels``. Raises MediaUndecodable."""
    return execute(upright_rgb(data, header), recipe)


def execute(picture: Image.Image, recipe: RenderRecipe) -> bytes:
    """Runs a recipe on an upright RGB picture."""
    for size in recipe.resizes:
        picture = _resized(picture, size)
    tiles = [picture.crop(box) for box in _boxes(recipe)] or [picture]
    if recipe.overview:
        tiles.append(_resized(picture, recipe.tile))
    return b"".join(tile.tobytes() for tile in tiles)


def _resized(picture: Image.Image, size: Size) -> Image.Image:
    return picture.resize((size.width, size.height), Image.Resampling.LANCZOS)


def _boxes(recipe: RenderRecipe) -> list[_Box]:
    """Tiles in reading order: left, top, right, bottom."""
    width, height = recipe.tile.width, recipe.tile.height
    return [
        (column * width, row * height, (column + 1) * width, (row + 1) * height)
        for row in range(recipe.rows)
        for column in range(recipe.columns)
    ]
