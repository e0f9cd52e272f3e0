"""Can a clock tell who sent a picture before? Time to the first token, with the real local engine and the demo model.

In each round three pictures that nobody has sent: one that the asking tenant sends a second time, one that another
tenant has sent before, and one that is new. The first has to be found by its time, or the measurement finds nothing;
the second must not differ from the third. Two-sided rank-sum tests, in an order drawn anew for each round.

    python -m benchmarks.isolation --rounds 200
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import time
from contextlib import aclosing
from io import BytesIO

from PIL import Image

from opsin.app import Application, build
from opsin.engine.api import Delta
from opsin.media import data_url
from opsin.protocol.request import parse_request
from opsin.settings import load_settings

SIDE = 256


def picture(draw: random.Random) -> str:
    """Noise that no round before had, as a data: URL."""
    buffer = BytesIO()
    Image.frombytes("RGB", (SIDE, SIDE), draw.randbytes(3 * SIDE * SIDE)).save(buffer, "PNG", compress_level=0)
    return data_url.write("image/png", buffer.getvalue())


async def first_token_s(application: Application, name: str, tenant: str, url: str) -> float:
    """Seconds from the request to its first token."""
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What?"}]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    chat = application.gateway.models.default.chat
    started = time.perf_counter()
    async with aclosing(
        chat.answer(parse_request(json.dumps(body).encode()), request_id=name, tenant=tenant)
    ) as events:
        async for event in events:
            if isinstance(event, Delta):
                break
    return time.perf_counter() - started


def p_value(one: list[float], other: list[float]) -> float:
    """Of Mann and Whitney's rank-sum test, two-sided, by its normal approximation; times are never tied."""
    ranked = sorted((value, index < len(one)) for index, value in enumerate([*one, *other]))
    ranks = sum(rank for rank, (_, is_one) in enumerate(ranked, 1) if is_one)
    n, m = len(one), len(other)
    mean, deviation = n * (n + m + 1) / 2, math.sqrt(n * m * (n + m + 1) / 12)
    return math.erfc(abs(ranks - mean) / deviation / math.sqrt(2))


async def measure(rounds: int, seed: int) -> dict[str, list[float]]:
    """Seconds by kind of picture."""
    draw = random.Random(seed)
    application = build(load_settings({"media": {"render_workers": 1}, "local": {"num_threads": 1}}))
    times: dict[str, list[float]] = {"own": [], "another's": [], "new": []}
    await application.start()
    try:
        for number in range(rounds):
            urls = {kind: picture(draw) for kind in times}
            await first_token_s(application, f"{number}-a", "asking", urls["own"])
            await first_token_s(application, f"{number}-b", "another", urls["another's"])
            for kind in draw.sample(list(times), len(times)):
                times[kind].append(await first_token_s(application, f"{number}-{kind}", "asking", urls[kind]))
    finally:
        await application.close()
    return times


def main() -> None:
    """Prints medians and p-values as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    times = asyncio.run(measure(args.rounds, args.seed))
    print(
        json.dumps(
            {
                "rounds": args.rounds,
                "median_ms": {kind: round(1e3 * statistics.median(seconds), 2) for kind, seconds in times.items()},
                "p_own_is_new": p_value(times["own"], times["new"]),
                "p_anothers_is_new": p_value(times["another's"], times["new"]),
            }
        )
    )


if __name__ == "__main__":
    main()
