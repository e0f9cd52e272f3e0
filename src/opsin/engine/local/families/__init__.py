"""How each model family's vision encoder and language model are called. A new family is a file and an entry here."""

from __future__ import annotations

from collections.abc import Mapping

from opsin.engine.local.families.gemma3 import Gemma3
from opsin.engine.local.families.idefics3 import Idefics3
from opsin.engine.local.families.internvl import InternVL
from opsin.engine.local.families.llava import Llava
from opsin.engine.local.families.llava_next import LlavaNext, LlavaOnevision
from opsin.engine.local.families.mistral3 import Mistral3
from opsin.engine.local.families.qwen_vl import Qwen3VL, QwenVL
from opsin.engine.local.families.seam import Seam

SEAMS: Mapping[str, Seam] = {
    "gemma3": Gemma3(),
    "idefics3": Idefics3(),
    "internvl": InternVL(),
    "llava": Llava(),
    "llava_next": LlavaNext(),
    "llava_onevision": LlavaOnevision(),
    "mistral3": Mistral3(),
    "qwen2_5_vl": QwenVL(),
    "qwen2_vl": QwenVL(),
    "qwen3_vl": Qwen3VL(),
    "smolvlm": Idefics3(),
}
"""By model type; the same types as in ``traits.TRAITS``."""
