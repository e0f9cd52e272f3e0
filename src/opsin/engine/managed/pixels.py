"""How a family's processor is told the largest picture it may make. Knows no engine.

Without it a single default picture of Qwen2.5-VL costs 16,384 tokens, more than many contexts hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from opsin.vision.idefics3 import Idefics3Family
from opsin.vision.plan import Family
from opsin.vision.qwen_vl import QwenVLFamily


def processor_cap(family: Family, max_tokens: int) -> Mapping[str, object] | None:
    """``mm_processor_kwargs`` with which no picture costs more than ``max_tokens`` visual tokens.

    None where the family takes no such cap, or where its own is no higher. A cap cannot go below the size to which a
    family enlarges small pictures, nor for Idefics3 below one tile with the overview beside it.
    """
    match family:
        case QwenVLFamily():
            pixels = max(max_tokens * family.factor**2, family.min_pixels)
            return {"max_pixels": pixels} if pixels < family.max_pixels else None
        case Idefics3Family():
            tiles_per_side = math.isqrt(max(max_tokens // family.tokens_per_tile - 1, 1))
            edge = tiles_per_side * family.tile_side
            return {"size": {"longest_edge": edge}} if edge < family.longest_edge else None
        case _:
            return None
