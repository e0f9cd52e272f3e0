"""The largest version of a picture that fits into a number of tokens. Knows families only by their interface."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TypeVar

from opsin.core.conversation import Detail
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

    def tokens(lowered: F) -> int:
        return measure(lowered.count(size, detail, num_pictures))

    if tokens(family) <= max_tokens:
        return family
    caps = family.caps()
    if isinstance(caps, range):
        num_fitting = bisect_right(caps, max_tokens, key=lambda cap: tokens(family.with_max_pixels(cap)))
        return family.with_max_pixels(caps[num_fitting - 1]) if num_fitting else None
    lowered = (family.with_max_pixels(cap) for cap in reversed(caps))
    return next((lower for lower in lowered if tokens(lower) <= max_tokens), None)
