"""A model's pictures by our rules and recipes beside its own processor: the findings of ``opsin doctor model``.

Needs Transformers and the model's small files; loads no weights and opens no picture but noise of its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from PIL import Image

from opsin.core.errors import MediaError
from opsin.engine.local.installed import check_installed
from opsin.media.render import execute
from opsin.media.types import RenderedPicture
from opsin.models.hub import resolve
from opsin.models.vision_files import read_vision_files
from opsin.settings import Settings
from opsin.vision.plan import Family, recipe_of
from opsin.vision.registry import family_for
from opsin.vision.size import Size

if TYPE_CHECKING:
    from opsin.engine.local.processor_oracle import ProcessorOracle

SIZES = (
    Size(1, 1), Size(7, 5), Size(64, 48), Size(1600, 16), Size(16, 1600), Size(320, 250), Size(640, 480),
    Size(1080, 1920), Size(1024, 1024), Size(4032, 3024),
)  # fmt: skip
"""One pixel, tiny, extreme aspects, a side of no family's multiple, portrait, square, large."""


class Renderer(StrEnum):
    """Who makes the tiles of a picture."""

    RECIPE = "recipe"
    PROCESSOR = "the model's own processor"


class Verdict(StrEnum):
    """About one size. COUNTS: there is no recipe, and the counts are equal."""

    EQUAL = "equal"
    COUNTS = "counts equal"
    REFUSED = "both refuse"
    DIFFERENT = "DIFFERENT"


@dataclass(frozen=True, slots=True)
class Cost:
    """What one side says. ``image_tokens`` is None where the processor that can be loaded does not tell."""

    tiles: int
    image_tokens: int | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A picture of one size. A side that refuses its shape is None.

    ``difference`` is the largest of all pixels in levels, 0 to 255; None without pixels of one shape on both sides.
    """

    size: Size
    renderer: Renderer
    ours: Cost | None
    theirs: Cost | None
    difference: int | None

    @property
    def verdict(self) -> Verdict:
        """All counts that are told, and all pixels where there is a recipe."""
        if self.ours is None or self.theirs is None:
            return Verdict.REFUSED if self.ours is self.theirs else Verdict.DIFFERENT
        if self.ours.tiles != self.theirs.tiles or self.theirs.image_tokens not in (None, self.ours.image_tokens):
            return Verdict.DIFFERENT
        if self.renderer is Renderer.PROCESSOR:
            return Verdict.COUNTS
        return Verdict.EQUAL if self.difference == 0 else Verdict.DIFFERENT


def compare(settings: Settings, sizes: Sequence[Size] = SIZES) -> Iterator[Comparison]:
    """A comparison of each size, as they come.

    Raises:
        ConfigError: Transformers is not installed or has no processor for the model; no such model; an unknown family.
    """
    check_installed()
    from opsin.engine.local.processor_oracle import ProcessorOracle  # takes seconds: torch

    folder = resolve(settings.model_location, settings.revision, hub=settings.hub).path
    files = read_vision_files(folder)
    family, oracle = family_for(files), ProcessorOracle(folder, files.model_type)
    for size in sizes:
        yield _compare(size, family, oracle)


def _compare(size: Size, family: Family, oracle: ProcessorOracle) -> Comparison:
    picture = _noise(size)
    made = oracle.made_of(picture)
    theirs = made and Cost(made.num_tiles, made.image_tokens)
    try:
        count, recipe = family.count(size), recipe_of(family, size)
    except MediaError:
        return Comparison(size, Renderer.RECIPE, None, theirs, None)
    ours = Cost(count.num_tiles, count.image_tokens)
    if recipe is None:
        return Comparison(size, Renderer.PROCESSOR, ours, theirs, None)
    rendered = RenderedPicture(execute(picture, recipe), recipe.num_tiles, recipe.tile)
    return Comparison(size, Renderer.RECIPE, ours, theirs, made.difference(rendered) if made else None)


def _noise(size: Size) -> Image.Image:
    """The same in every run. Nothing tells two resizes apart as surely."""
    return Image.frombytes("RGB", (size.width, size.height), random.Random(7).randbytes(size.area * 3))
