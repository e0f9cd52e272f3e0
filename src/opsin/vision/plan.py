"""What a picture becomes for a model: the plan that every later stage follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from opsin.core.conversation import Detail


@dataclass(frozen=True, slots=True)
class Size:
    """Pixels, upright (after orientation)."""

    width: int
    height: int


@dataclass(frozen=True, slots=True)
class RenderRecipe:
    """Pixel work as data, so that the sandbox that runs it knows no model.

    The upright RGB picture is resized (Lanczos) to each of ``resizes`` in turn, cut into ``rows`` x ``columns`` tiles
    of ``tile`` in reading order, and, if ``overview``, resized to one more tile that comes last. ``rows == columns ==
    0`` means no cut: the picture itself (already of ``tile`` size) is the only tile.
    """

    resizes: tuple[Size, ...]
    tile: Size
    rows: int
    columns: int
    overview: bool


@dataclass(frozen=True, slots=True)
class VisionPlan:
    """Exact cost and layout of one picture.

    ``image_tokens`` are positions filled by the vision encoder; ``slot`` is the text that stands for the picture in the
    prompt, all of it markers and image tokens of the model's own vocabulary, tokenised apart and spliced as ids.
    """

    original: Size
    used: Size
    num_tiles: int
    image_tokens: int
    slot: str
    recipe: RenderRecipe


class Family(Protocol):
    """A model family's visual-token rule with the parameters of one checkpoint."""

    @property
    def name(self) -> str:
        """The model type."""
        ...

    @property
    def image_token(self) -> str:
        """The placeholder that the chat template emits once per picture."""
        ...

    def plan(self, size: Size, detail: Detail) -> VisionPlan:
        """The plan for an upright picture of ``size``."""
        ...
