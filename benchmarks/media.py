"""From the bytes of a file to tiles, beside the model's own processor; all in one run, in turn.

usage: PYTHONPATH=src:. python benchmarks/media.py [--rounds 7] [--clock cpu]

Inside the clock: decode, orient, RGB, resize, cut, up to the uint8 tiles as they are sent to the runner.

* exact, fast: the function that a render worker runs, in this process, with its two modes
* pool: exact through a real confined worker, sockets and messages included
* float: exact, and then the runner's own ``pixel_values``, which is what the processor's output is
* processor: ``Image.open`` to ``pixel_values``, the model's image processor with Pillow's backend, as Transformers and
  vLLM run it where torchvision is not installed

Each is called once in every round, in an order that turns; printed are medians, and the ratio processor / ours. PSNR is
that of fast tiles beside exact ones. ``--clock cpu`` reads this process's processor time, for a machine that has other
work; the pool, whose time is another process's, is then left out.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from opsin.bench.photo import PhotoMaker
from opsin.engine.local.messages import Tiles
from opsin.engine.local.runner import pixel_values
from opsin.media.config import MediaConfig
from opsin.media.loader import inspect
from opsin.media.pool import RenderPool
from opsin.media.render import render
from opsin.media.types import MediaBytes, RenderMode
from opsin.models.facts import known_checkpoints
from opsin.vision.plan import recipe_of
from opsin.vision.recipe import RenderRecipe
from opsin.vision.registry import family_for

PICTURES = (("12 Mpx JPEG", 4032, 3024, "JPEG"), ("1080p JPEG", 1920, 1080, "JPEG"),
            ("720p PNG", 1280, 720, "PNG"), ("12 Mpx WebP", 4032, 3024, "WEBP"))  # fmt: skip
MODELS = {
    "HuggingFaceTB/SmolVLM-256M-Instruct": Idefics3ImageProcessorPil(
        size={"longest_edge": 2048}, max_image_size={"longest_edge": 512}
    ),
    "Qwen/Qwen2.5-VL-7B-Instruct": Qwen2VLImageProcessorPil(min_pixels=3136, max_pixels=12845056),
}
NAMES = ("processor", "exact", "fast", "pool", "float")
MEAN = STD = (0.5, 0.5, 0.5)  # of values; what they are costs nothing
CONFIG = MediaConfig(max_image_bytes=2**26, render_workers=1, render_timeout_s=60)

_Path = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Case:
    """One picture for one model."""

    media: MediaBytes
    recipe: RenderRecipe
    processor: Any
    pool: RenderPool

    async def exact(self) -> bytes:
        return render(self.media.data, self.media.header, self.recipe)

    async def fast(self) -> bytes:
        return render(self.media.data, self.media.header, self.recipe, RenderMode.FAST)

    async def through_pool(self) -> object:
        return await self.pool.render(self.media, self.recipe)

    async def to_floats(self) -> object:
        tile = self.recipe.tile
        tiles = Tiles(await self.exact(), self.recipe.num_tiles, width=tile.width, height=tile.height)
        return pixel_values(tiles, MEAN, STD, torch.device("cpu"))

    async def by_processor(self) -> object:
        return self.processor(Image.open(BytesIO(self.media.data)), return_tensors="pt")


async def medians(paths: Mapping[str, _Path], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Milliseconds. One round more comes first, outside of the clock."""
    seen: dict[str, list[float]] = {name: [] for name in paths}
    names = list(paths)
    for number in range(rounds + 1):
        for name in (*names[number % len(names) :], *names[: number % len(names)]):
            started = clock()
            await paths[name]()
            seen[name].append((clock() - started) * 1000)
    return {name: statistics.median(times[1:]) for name, times in seen.items()}


async def psnr(case: Case) -> float:
    """In dB; infinite where nothing differs."""
    exact, fast = (np.frombuffer(tiles, np.uint8) for tiles in (await case.exact(), await case.fast()))
    mean = float(np.mean((exact.astype(np.float32) - fast) ** 2))
    return 10 * math.log10(255**2 / mean) if mean else math.inf


def photo(width: int, height: int, image_format: str) -> bytes:
    """Quality 85 where the format has one."""
    buffer = BytesIO()
    PhotoMaker(0).draw(0, width, height).convert("RGB").save(buffer, image_format, quality=85)
    return buffer.getvalue()


async def measure(rounds: int, clock: Callable[[], float]) -> None:
    """One line per model and picture."""
    print(
        "| model | picture | tiles | processor, ms | exact | fast | pool | float | exact x | fast x | float x | PSNR |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    pool = RenderPool(CONFIG)
    await pool.start()
    files = {name: inspect(photo(width, height, kind), CONFIG, name) for name, width, height, kind in PICTURES}
    for model_id, processor in MODELS.items():
        family = family_for(known_checkpoints()[model_id].vision)
        for name, media in files.items():
            recipe = recipe_of(family, media.header.upright)
            assert recipe is not None
            case = Case(media, recipe, processor, pool)
            paths: dict[str, _Path] = {
                "processor": case.by_processor, "exact": case.exact, "fast": case.fast, "pool": case.through_pool,
                "float": case.to_floats,
            }  # fmt: skip
            if clock is time.process_time:
                del paths["pool"]
            ms = await medians(paths, rounds, clock)
            ratios = " | ".join(f"{ms['processor'] / ms[path]:.2f}" for path in ("exact", "fast", "float"))
            times = " | ".join(f"{ms[path]:.1f}" if path in ms else "" for path in NAMES)
            tiles = f"{recipe.num_tiles} of {recipe.tile.width} x {recipe.tile.height}"
            print(f"| {model_id} | {name} | {tiles} | {times} | {ratios} | {await psnr(case):.1f} dB |", flush=True)
    await pool.close()


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description="From bytes to tiles, beside the model's own processor.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    args = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.2f}, {torch.get_num_threads()} threads for torch, one for Pillow")
    asyncio.run(measure(args.rounds, time.process_time if args.clock == "cpu" else time.perf_counter))


if __name__ == "__main__":
    main()
