"""How each model family's vision encoder and language model are called. A new family is a file and an entry here."""

from __future__ import annotations

from collections.abc import Mapping

from opsin.engine.local.families.idefics3 import Idefics3
from opsin.engine.local.families.seam import Seam

SEAMS: Mapping[str, Seam] = {
    "idefics3": Idefics3(),
    "smolvlm": Idefics3(),
}
"""By model type; the same types as in ``traits.TRAITS``."""
