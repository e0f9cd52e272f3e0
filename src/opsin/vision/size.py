"""Width and height, which is all that counting needs of a picture."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    """Pixels, upright (after orientation)."""

    width: int
    height: int

    @property
    def area(self) -> int:
        """Pixels in total."""
        return self.width * self.height
