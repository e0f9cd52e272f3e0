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

    ``drops_padding``: features depend on the picture's own size, as those of padding are left out.
    """

    unit: EncoderUnit
    whole_pictures: bool = False
    drops_padding: bool = False


_TILES = FamilyTraits(unit=EncoderUnit.TILE)
_PICTURES = FamilyTraits(unit=EncoderUnit.PICTURE)
_CANVASES = FamilyTraits(unit=EncoderUnit.PICTURE, drops_padding=True)

TRAITS: Mapping[str, FamilyTraits] = {
    "gemma3": FamilyTraits(unit=EncoderUnit.TILE, whole_pictures=True),
    "idefics3": _TILES,
    "internvl": _TILES,
    "llava": _PICTURES,
    "llava_next": _CANVASES,
    "llava_onevision": _CANVASES,
    "mistral3": _PICTURES,
    "qwen2_5_vl": _PICTURES,
    "qwen2_vl": _PICTURES,
    "qwen3_vl": _PICTURES,
    "smolvlm": _TILES,
}
"""Families whose encoder seam is tested, by model type."""
