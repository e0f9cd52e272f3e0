"""The largest picture that a number of tokens allows, and how a family's own processor is told of it.

Knows no engine. Without such a cap a default picture of Qwen2.5-VL costs up to 16,384 tokens, more than many contexts
hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from opsin.vision.bounds import configured
from opsin.vision.config import ProcessorKwargs
from opsin.vision.idefics3 import Idefics3Family
from opsin.vision.plan import Family
from opsin.vision.qwen_vl import QwenVLFamily


def max_pixels_within(family: Family, max_tokens: int) -> int | None:
    """``max_pixels`` with which no picture costs more than ``max_tokens`` visual tokens.

    None where the family's processor takes no cap, or where its own is no higher. A cap cannot go below the size to
    which a family enlarges small pictures, nor for Idefics3 below one tile with the overview beside it.
    """
    match family:
        case QwenVLFamily():
            pixels = max(max_tokens * family.factor**2, family.min_pixels)
            return pixels if pixels < family.max_pixels else None
        case Idefics3Family():
            tiles_per_side = math.isqrt(max(max_tokens // family.tokens_per_tile - 1, 1))
            edge = tiles_per_side * family.tile_side
            return edge**2 if edge < family.longest_edge else None
        case _:
            return None


def in_its_words(family: Family | None, kwargs: ProcessorKwargs) -> Mapping[str, object]:
    """What the processor itself reads: Idefics3's knows edges where opsin counts pixels for every family.

    Raises:
        ConfigError: the family has no such bound.
    """
    stated = kwargs.model_dump(exclude_none=True, exclude_defaults=True)
    if isinstance(family, Idefics3Family) and "max_pixels" in stated:
        del stated["max_pixels"]
        stated["size"] = {"longest_edge": configured(family, kwargs).longest_edge}
    return stated
