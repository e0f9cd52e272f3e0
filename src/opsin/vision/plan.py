"""What a picture becomes for a model: what it costs, and the plan that every later stage follows.

Counting needs a picture's size alone and is possible for every family. A recipe says how the pixels are made, where
recipes can. A plan is both and the text that stands for the picture, which only the local engine needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar, runtime_checkable

from opsin.core.conversation import Detail
from opsin.vision.recipe import RenderRecipe
from opsin.vision.size import Size


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What one picture costs.

    ``used`` is the size to which the picture is scaled before it is padded or cut, the overview apart. ``num_tiles``
    are the pictures that the encoder sees, the overview among them. ``image_tokens`` are positions of the prompt that
    the encoder fills, newline and separator features included. ``marker_tokens`` are the model's own tokens around
    them: start, end, row labels. ``cross_attention_tokens`` are positions outside the prompt, of models that look at
    pictures by cross-attention. ``exact`` is false for an estimate.
    """

    original: Size
    used: Size
    num_tiles: int
    image_tokens: int
    marker_tokens: int
    cross_attention_tokens: int = 0
    exact: bool = True

    @property
    def prompt_tokens(self) -> int:
        """What the picture takes of the context."""
        return self.image_tokens + self.marker_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionPlan(Count):
    """Exact cost and layout of one picture.

    ``slot`` is the text that stands for the picture in the prompt. It begins and ends with tokens of the model's own,
    so that it can be tokenised apart and spliced as ids.
    """

    slot: str
    recipe: RenderRecipe


class Family(Protocol):
    """A model family's visual-token rule with the parameters of one checkpoint."""

    @property
    def name(self) -> str:
        """The model type."""
        ...

    def count(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> Count:
        """The cost of an upright picture of ``size``, one of ``num_pictures`` in its request.

        Raises:
            MediaError: the family's own processor refuses a picture of this shape.
        """
        ...

    def with_max_pixels(self, max_pixels: int) -> Self:
        """This family under a lower cap on ``used``, taken down to what its processor can do; never a higher one.

        Where the processor limits a side, ``max_pixels`` are those of a square. At the least one tile remains.
        """
        ...

    def caps(self) -> Sequence[int]:
        """Every ``max_pixels`` at which counts may change, ascending: a range where counts never fall as it rises."""
        ...


@runtime_checkable
class BoundedFamily(Family, Protocol):
    """A family whose processor takes two bounds on pixels, also as ``size``, where they are over ``num_frames``."""

    @property
    def num_frames(self) -> int:
        """Into how many frames a still is repeated."""
        ...

    def with_min_pixels(self, min_pixels: int) -> Self:
        """This family, which enlarges smaller pictures to no more than ``min_pixels``; never to more than before."""
        ...


@runtime_checkable
class SplittingFamily(Family, Protocol):
    """A family whose processor cuts pictures, or not, as it is told."""

    def with_image_splitting(self, splits: bool) -> Self:
        """This family with another default for ``detail: auto``."""
        ...


@runtime_checkable
class Rendering(Protocol):
    """A family whose pixels a recipe makes exactly as the model's own processor does (Transformers, PIL backend)."""

    def recipe(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> RenderRecipe | None:
        """For an upright picture of ``size``, with the tiles of its ``count``; arguments as for that.

        None when this checkpoint's processor does what recipes cannot say. Raises MediaError as ``count`` does.
        """
        ...


def recipe_of(family: object, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> RenderRecipe | None:
    """The family's recipe; None where only the model's own processor makes its pixels. Raises MediaError."""
    return family.recipe(size, detail, num_pictures) if isinstance(family, Rendering) else None


@dataclass(frozen=True, slots=True)
class Placeholder:
    """What the chat template writes for a picture, to be replaced by its slot.

    The model's processor writes ``before`` and ``after`` around it, which are tokenised with the text that they touch.
    ``num_markers`` tokens that the template writes around it are the picture's, and counted with it.
    """

    token: str
    before: str = ""
    after: str = ""
    num_markers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTokens:
    """Text of the tokens of a slot: one per position that the encoder fills, and what stands around all of them."""

    image: str
    start: str = ""
    end: str = ""

    def slot(self, image_tokens: int) -> str:
        """For so many positions."""
        return f"{self.start}{self.image * image_tokens}{self.end}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OneImageToken:
    """What a family is whose template emits for a picture the token that then stands at each of its positions."""

    tokens: ImageTokens

    @property
    def image_token(self) -> str:
        """See NativeFamily."""
        return self.tokens.image

    @property
    def placeholder(self) -> Placeholder:
        """See NativeFamily."""
        return Placeholder(self.image_token)


class NativeFamily(Family, Rendering, Protocol):
    """A family that the local engine can serve: it also says what stands for a picture in the prompt."""

    @property
    def image_token(self) -> str:
        """What stands in a slot at each position that the encoder fills."""
        ...

    @property
    def placeholder(self) -> Placeholder:
        """What the chat template emits once per picture; mostly the same token."""
        ...

    def slot(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> str:
        """The text that stands for an upright picture of ``size``; arguments as for ``count``. See VisionPlan."""
        ...


def planned(family: NativeFamily, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> VisionPlan:
    """The plan for an upright picture of ``size``, one of ``num_pictures`` in its request. Raises MediaError."""
    count = family.count(size, detail, num_pictures)
    recipe = family.recipe(size, detail, num_pictures)
    assert recipe is not None, "a checkpoint that recipes cannot follow is refused when it is loaded"
    return VisionPlan(
        original=count.original,
        used=count.used,
        num_tiles=count.num_tiles,
        image_tokens=count.image_tokens,
        marker_tokens=count.marker_tokens,
        slot=family.slot(size, detail, num_pictures),
        recipe=recipe,
    )


def typical_plans(family: NativeFamily) -> list[VisionPlan]:
    """Of a picture that costs little, and of square ones up to the largest; no two alike."""
    plans = [planned(family, Size(side, side), Detail.LOW if side == _SMALL else Detail.AUTO) for side in _TYPICAL]
    return list({plan.image_tokens: plan for plan in plans}.values())


_SMALL = 224
_TYPICAL = (_SMALL, 448, 1024, 2048, 4096)


@runtime_checkable
class TokenizedFamily(Family, Protocol):
    """A family whose slots hold text that tokenizers read differently."""

    def counted_by(self, num_tokens: Callable[[str], int]) -> Self:
        """This family, whose markers are counted as its tokenizer does, which says how many tokens a text is."""
        ...


F = TypeVar("F", bound=Family)


def counted_by(family: F, num_tokens: Callable[[str], int]) -> F:
    """The family with its markers counted by a tokenizer, where that makes a difference."""
    return family.counted_by(num_tokens) if isinstance(family, TokenizedFamily) else family
