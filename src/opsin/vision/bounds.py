"""``mm_processor_kwargs``: other bounds for a family, never above its own. A request's go on top of the operator's."""

from __future__ import annotations

from typing import TypeVar

from opsin.core.conversation import PixelBounds
from opsin.core.errors import ConfigError, InvalidRequest
from opsin.vision.config import ProcessorKwargs
from opsin.vision.plan import BoundedFamily, Family, SplittingFamily

F = TypeVar("F", bound=Family)

_FIELD = "mm_processor_kwargs"


def configured(family: F, kwargs: ProcessorKwargs) -> F:
    """The family as the operator wants it. Raises ConfigError."""
    if kwargs.do_image_splitting is not None:
        if not isinstance(family, SplittingFamily):
            raise ConfigError(f"--mm-processor-kwargs: {family.name} has no do_image_splitting")
        family = family.with_image_splitting(kwargs.do_image_splitting)
    try:
        return bounded(family, kwargs.bounds)
    except InvalidRequest as error:
        raise ConfigError(f"--mm-processor-kwargs: {error.message}") from None


def bounded(family: F, bounds: PixelBounds) -> F:
    """The family between ``bounds``, as far as its own allow.

    Raises:
        InvalidRequest: its processor knows no such bound, or nothing lies between them.
    """
    lowest, highest = _pixels(family, bounds)
    if highest is not None:
        family = _below(family, highest)
    if lowest is not None:
        if not isinstance(family, BoundedFamily):
            raise _wrong("min_pixels", f"{family.name} scales pictures to sizes of its own; only 'max_pixels' is known")
        if highest is not None and lowest > highest:
            raise _wrong("min_pixels", f"is {lowest}, which is more than 'max_pixels', {highest}")
        family = family.with_min_pixels(lowest)
    return family


def _pixels(family: Family, bounds: PixelBounds) -> tuple[int | None, int | None]:
    """Lowest and highest, of one frame."""
    if bounds.shortest_edge is None and bounds.longest_edge is None:
        return bounds.min_pixels, bounds.max_pixels
    if bounds.min_pixels is not None or bounds.max_pixels is not None:
        raise _wrong("size", "says the same as 'min_pixels' and 'max_pixels'; send one of them")
    if not isinstance(family, BoundedFamily):
        raise _wrong("size", f"means something else to the processor of {family.name}; send 'max_pixels'")
    frames = family.num_frames
    return bounds.shortest_edge and -(
        -bounds.shortest_edge // frames
    ), bounds.longest_edge and bounds.longest_edge // frames


def _below(family: F, max_pixels: int) -> F:
    caps = family.caps()
    if not caps:
        raise _wrong("max_pixels", f"pictures of {family.name} have one size")
    if max_pixels < caps[0]:
        raise _wrong("max_pixels", f"is {max_pixels}; the least of this model is {caps[0]}")
    return family.with_max_pixels(max_pixels)


def _wrong(field: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"'{_FIELD}.{field}': {why}", param=f"{_FIELD}.{field}")
