"""What counting and fitting pictures costs on one core, per family, for the slowest of the shapes that its rule knows.

A count and a fit are of one picture; a refusal and a scaling of a hostile request: sixteen pictures of sixteen sizes.

usage: PYTHONPATH=src python benchmarks/counting.py
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable
from functools import partial

from opsin.core.conversation import Detail
from opsin.core.errors import InvalidRequest
from opsin.gateway.budget import Want, fit
from opsin.gateway.config import GatewayConfig, OverBudget
from opsin.models.facts import known_checkpoints
from opsin.vision.budget import fitting
from opsin.vision.plan import Family, Size
from opsin.vision.registry import family_for

SIZES = (Size(336, 336), Size(640, 480), Size(1920, 1080), Size(4032, 3024), Size(900, 5000))
HOSTILE = [Want(Size(4000 - 97 * place, 1000 + 193 * place), Detail.AUTO, "p") for place in range(16)]
REPEATS = 5
EVERYTHING_SCALES = GatewayConfig(over_budget=OverBudget.DOWNSCALE, max_request_image_tokens=10**6)


def microseconds(work: Callable[[], object], number: int) -> float:
    """Of the processor, per call; best of several rounds."""
    return min(timeit.repeat(work, timer=time.process_time, number=number, repeat=REPEATS)) / number * 1e6


def fit_half(family: Family, size: Size) -> object:
    """Finding the largest cap at which half of the tokens fit."""
    return fitting(family, size, family.count(size).image_tokens // 2)


def prompt_tokens(family: Family) -> int:
    """Of the hostile request, as asked."""
    return sum(family.count(want.size, want.detail, len(HOSTILE)).prompt_tokens for want in HOSTILE)


def answer(family: Family, room: int) -> bool:
    """Whether the hostile request is served."""
    try:
        fit(family, HOSTILE, room, EVERYTHING_SCALES)
    except InvalidRequest:
        return False
    return True


def line(family: Family) -> str:
    """The costs of one family; no scaling where half of the tokens are too few."""
    count = max(microseconds(partial(family.count, size), 200) for size in SIZES)
    one = max(microseconds(partial(fit_half, family, size), 5) for size in SIZES)
    refused = microseconds(partial(answer, family, 1), 20)
    room = prompt_tokens(family) // 2
    scaled = f"{microseconds(partial(answer, family, room), 3):8.0f}" if answer(family, room) else "       -"
    return f"{count:6.1f} us count {one:7.1f} us fit {refused:6.0f} us refuse {scaled} us scale"


def main() -> None:
    """One line per set of parameters."""
    families = {facts.vision_source: model_id for model_id, facts in known_checkpoints().items()}
    for model_id in sorted(families.values()):
        print(line(family_for(known_checkpoints()[model_id].vision)), model_id)


if __name__ == "__main__":
    main()
