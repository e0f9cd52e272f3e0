"""What can be had of an engine that runs the model's processor itself: fewer tokens only by a smaller picture.

Such an engine reads neither our cap nor ``detail``. The picture that it gets can be what its processor would have made
of it under a lower cap; most processors then leave it as it is. Those that scale every picture up to one longest edge
(Idefics3, SmolVLM), or that see one size only, do not get cheaper by that: for them vLLM has ``mm_processor_kwargs``,
which are not sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from opsin.core.conversation import Detail
from opsin.vision.plan import Count, Family, Size


@dataclass(frozen=True, slots=True)
class BySize:
    """A family behind such an engine. ``lowered`` is the same one within the bounds that are wished for."""

    engine: Family
    lowered: Family

    @classmethod
    def of(cls, engine: Family) -> Self:
        """Without a cap."""
        return cls(engine, engine)

    @property
    def name(self) -> str:
        """The model type."""
        return self.engine.name

    def count(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> Count:
        """See Family: what the engine makes of the picture as it is sent."""
        return self._sent(size, detail, num_pictures)[1]

    def size_to_send(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> Size | None:
        """The size at which the picture costs that count, never a larger one; None where it goes as it came."""
        return self._sent(size, detail, num_pictures)[0]

    def least_size(self, size: Size, detail: Detail = Detail.AUTO, num_pictures: int = 1) -> Size | None:
        """As ``size_to_send``, but never larger than the engine would scale it itself; it costs the same."""
        to, count = self._sent(size, detail, num_pictures)
        used = count.used
        if used.width > size.width or used.height > size.height or used == size:
            return to
        again = self.engine.count(used, num_pictures=num_pictures)
        return used if replace(again, original=size) == count else to

    def with_max_pixels(self, max_pixels: int) -> Self:
        """See Family."""
        return replace(self, lowered=self.lowered.with_max_pixels(max_pixels))

    def caps(self) -> Sequence[int]:
        """See Family."""
        return self.lowered.caps()

    def _sent(self, size: Size, detail: Detail, num_pictures: int) -> tuple[Size | None, Count]:
        as_it_is = self.engine.count(size, num_pictures=num_pictures)
        if self.lowered == self.engine and detail is not Detail.LOW:
            return None, as_it_is
        wished = Detail.LOW if detail is Detail.LOW else Detail.AUTO
        smaller = self.lowered.count(size, wished, num_pictures).used
        if smaller.width > size.width or smaller.height > size.height:
            return None, as_it_is
        scaled = replace(self.engine.count(smaller, num_pictures=num_pictures), original=size)
        return (smaller, scaled) if _cost(scaled) < _cost(as_it_is) else (None, as_it_is)


def _cost(count: Count) -> int:
    return count.prompt_tokens + count.cross_attention_tokens
