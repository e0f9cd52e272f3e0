"""What counting one picture costs: microseconds per family, the slowest of the shapes that its rule knows.

usage: PYTHONPATH=src python benchmarks/counting.py
"""

from __future__ import annotations

import timeit

from opsin.core.conversation import Detail
from opsin.models.facts import known_checkpoints
from opsin.vision.budget import fitting
from opsin.vision.plan import Family, Size
from opsin.vision.registry import family_for

SIZES = (Size(336, 336), Size(640, 480), Size(1920, 1080), Size(4032, 3024), Size(900, 5000))
REPEATS = 5


def microseconds(family: Family, size: Size) -> float:
    """Best of several rounds, per count."""
    number = 200
    return min(timeit.repeat(lambda: family.count(size, Detail.AUTO), number=number, repeat=REPEATS)) / number * 1e6


def fitting_microseconds(family: Family, size: Size) -> float:
    """Finding the largest cap at which half of the tokens fit."""
    limit = family.count(size).image_tokens // 2
    return min(timeit.repeat(lambda: fitting(family, size, limit), number=5, repeat=REPEATS)) / 5 * 1e6


def main() -> None:
    """One line per set of parameters."""
    families = {facts.vision_source: model_id for model_id, facts in known_checkpoints().items()}
    for model_id in sorted(families.values()):
        family = family_for(known_checkpoints()[model_id].vision)
        count = max(microseconds(family, size) for size in SIZES)
        fit = max(fitting_microseconds(family, size) for size in SIZES)
        print(f"{count:7.1f} us a count {fit:9.1f} us to fit  {model_id}")


if __name__ == "__main__":
    main()
