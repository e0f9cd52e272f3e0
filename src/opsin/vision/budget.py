"""The largest version of a picture that is within limits. Knows families only by their interface."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TypeVar

from opsin.core.conversation import Detail
from opsin.core.errors import MediaError
from opsin.vision.plan import Count, Family, Size

F = TypeVar("F", bound=Family)


def image_tokens(count: Count) -> int:
    """The default measure: positions filled by the encoder."""
    return count.image_tokens


def fitting(
    family: F,
    size: Size,
    max_tokens: int,
    *,
    detail: Detail = Detail.AUTO,
    num_pictures: int = 1,
    measure: Callable[[Count], int] = image_tokens,
) -> F | None:
    """``family`` under the highest cap at which the picture is at most ``max_tokens`` by ``measure``.

    The family itself where no cap is needed, None where none is low enough.
    """
    return within(family, size, lambda count: measure(count) <= max_tokens, detail=detail, num_pictures=num_pictures)


def within(
    family: F, size: Size, fits: Callable[[Count], bool], *, detail: Detail = Detail.AUTO, num_pictures: int = 1
) -> F | None:
    """``family`` under the highest cap at which the picture ``fits``, a test that holds for all smaller counts too.

    The family itself where no cap is needed, None where none is low enough.

    Raises:
        MediaError: the model takes no picture of this shape.
    """

    def holds(cap: int, *, if_too_thin: bool) -> bool:
        try:
            return fits(family.with_max_pixels(cap).count(size, detail, num_pictures))
        except MediaError:  # a picture can be too thin for the lowest caps, and for these alone
            return if_too_thin

    if fits(family.count(size, detail, num_pictures)):
        return family
    caps = family.caps()
    if isinstance(caps, range):
        num_low = bisect_right(caps, False, key=lambda cap: not holds(cap, if_too_thin=True))
        caps = caps[:num_low][-1:]
    highest = next((cap for cap in reversed(caps) if holds(cap, if_too_thin=False)), None)
    return None if highest is None else family.with_max_pixels(highest)
