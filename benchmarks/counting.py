"""What counting and fitting pictures costs on one core, per family, for the slowest of the shapes that its rule knows.

A count and a fit are of one picture; a refusal and a scaling of a hostile request: sixteen pictures of sixteen sizes.
The last lines are a picture from the bytes of its file to its count, and four of them in ``/v1/tokens``, without HTTP.

usage: PYTHONPATH=src python benchmarks/counting.py
"""

from __future__ import annotations

import asyncio
import json
import time
import timeit
from collections.abc import Callable
from functools import partial
from io import BytesIO

from PIL import Image

from opsin.cache.loading import NOBODY, Unscoped
from opsin.core.conversation import Detail
from opsin.core.errors import InvalidRequest
from opsin.counting import find_model, prompt_counter
from opsin.gateway.budget import Want, fit
from opsin.gateway.config import GatewayConfig, OverBudget
from opsin.gateway.count import CountService, to_wire
from opsin.media import data_url
from opsin.media.config import ACCEPTED_BY_DEFAULT
from opsin.media.header import read_header
from opsin.media.loader import NONE_LIFTED, MediaLoader
from opsin.models.facts import known_checkpoints
from opsin.protocol.request import parse_request
from opsin.protocol.response import encode
from opsin.settings import Settings
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


def picture(image_format: str) -> bytes:
    """A drawn one of 1920 x 1080."""
    buffer = BytesIO()
    Image.effect_mandelbrot((1920, 1080), (-3, -2.5, 2, 2.5), 100).convert("RGB").save(buffer, image_format)
    return buffer.getvalue()


def from_file(data: bytes, family: Family) -> object:
    """Its header read and counted."""
    return family.count(read_header(data, "p", ACCEPTED_BY_DEFAULT).upright)


def request_of_four() -> float:
    """Microseconds from the body to the answer's bytes, with the demo model."""
    settings = Settings()
    counter = prompt_counter(settings, find_model(settings))
    assert counter is not None
    service = CountService(Unscoped(MediaLoader(settings.media)), counter)
    url = data_url.write("image/jpeg", picture("jpeg"))
    parts = [{"type": "image_url", "image_url": {"url": url}}] * 4
    body = json.dumps({"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": "What?"}]}]}).encode()
    loop = asyncio.new_event_loop()

    def once() -> bytes:
        counted = loop.run_until_complete(service.count(NOBODY, parse_request(body), NONE_LIFTED))
        return encode(to_wire(counted, model="demo"))

    try:
        return microseconds(once, 10)
    finally:
        loop.close()


def main() -> None:
    """One line per set of parameters."""
    families = {facts.vision_source: model_id for model_id, facts in known_checkpoints().items()}
    for model_id in sorted(families.values()):
        print(line(family_for(known_checkpoints()[model_id].vision)), model_id)
    family = family_for(known_checkpoints()["HuggingFaceTB/SmolVLM-256M-Instruct"].vision)
    for image_format in ("jpeg", "png", "webp"):
        data = picture(image_format)
        print(f"{microseconds(partial(from_file, data, family), 100):6.1f} us from {len(data)} bytes of {image_format}")
    print(f"{request_of_four():6.0f} us for a request of four jpegs")


if __name__ == "__main__":
    main()
