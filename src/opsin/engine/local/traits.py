"""What scheduling and caching have to know of a model family, as data. Knows no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class EncoderUnit(StrEnum):
    """What the vision encoder can run, and the cache can keep, apart from everything else."""

    TILE = "tile"  # tiles of a picture do not see each other
    PICTURE = "picture"


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTraits:
    """``whole_pictures``: positions of one picture attend to each other in both directions, so prefill may not cut it.

    ``counts_pictures``: features depend on how many pictures the request has.
    """

    unit: EncoderUnit
    whole_pictures: bool = False
    counts_pictures: bool = False


_TILES = FamilyTraits(unit=EncoderUnit.TILE)

TRAITS: Mapping[str, FamilyTraits] = {
    "idefics3": _TILES,
    "smolvlm": _TILES,
}
"""Families whose encoder seam is tested, by model type."""
