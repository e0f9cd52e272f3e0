"""What this machine's matrix products reach at most, and what the vision encoder and decode reach in one process.

Ceilings are measured before and after what stands beside them, because they drift: a neighbour on the host halved them
for seconds at a time where this was written. Functions here are run in processes of their own by ``isolated``.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, cast

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from opsin.engine.local.config import LocalEngineConfig, VisionDtype
from opsin.engine.local.messages import Tiles
from opsin.engine.local.packed_linear import PackedLinear
from opsin.engine.local.quantized_linear import QuantizedLinear
from opsin.engine.local.runner import TransformersRunner
from opsin.engine.local.sequence import Unit

P = ParamSpec("P")
T = TypeVar("T")
Product = Literal["bfloat16", "float32", "int8"]

_ROWS, _IN, _OUT = 1024, 768, 3072
"""The largest product of a SigLIP-B on a tile of 512 x 512."""
_SECONDS = 0.6


@dataclass(frozen=True, slots=True)
class EncodeSpeed:
    """Milliseconds per tile, median and range, and GFLOP/s of products around it; ``peak_bytes`` of the process."""

    tile_ms: tuple[float, ...]
    ceilings: dict[Product, float]
    runs_in: str
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Tpot:
    """Seconds per step of ``generate``."""

    seconds: float
    peak_bytes: int


def isolated(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs it in a fresh process, so that its memory is its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


@torch.inference_mode()
def ceiling(product: Product, threads: int) -> float:
    """FLOP/s of one product with its weights packed beforehand, the best that a linear layer can do."""
    torch.set_num_threads(threads)
    linear = torch.nn.Linear(_IN, _OUT).requires_grad_(False)
    if product == "int8":
        run = _int8_product(linear)
    else:
        dtype = cast("torch.dtype", getattr(torch, product))
        layer, rows = PackedLinear(linear.to(dtype)), torch.randn(_ROWS, _IN, dtype=dtype)
        run = lambda: layer(rows)  # noqa: E731 - one of two ways to make one
    return 2.0 * _ROWS * _IN * _OUT / _median_s(run)


def _int8_product(linear: torch.nn.Linear) -> Callable[[], object]:
    """Without rounding its input, which is not a product."""
    packed = QuantizedLinear(linear)
    levels = torch.randint(0, 255, (_ROWS, _IN), dtype=torch.uint8)
    return lambda: packed.product(levels, 0.02, 128, torch.float32)


def _median_s(run: Callable[[], object]) -> float:
    run()
    times: list[float] = []
    end = time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def encode_speed(
    checkpoint: Path, threads: int, vision_dtype: VisionDtype, products: tuple[Product, ...], tiles: int
) -> EncodeSpeed:
    """The runner's own encode of drawn tiles, by two as the engine does on a CPU."""
    before = {product: ceiling(product, threads) for product in products}
    runner = TransformersRunner(_config(checkpoint, threads, vision_dtype))
    told: list[str] = []
    runner.load(told.append)
    runner.encode([_unit(0), _unit(1)])
    times: list[float] = []
    for number in range(2, tiles + 2, 2):
        started = time.perf_counter()
        runner.encode([_unit(number), _unit(number + 1)])
        times.append((time.perf_counter() - started) * 1e3 / 2)
    after = {product: ceiling(product, threads) for product in products}
    ceilings: dict[Product, float] = {product: (before[product] + after[product]) / 2 for product in products}
    return EncodeSpeed(tuple(times), ceilings, runner.vision_dtype, _peak_bytes())


@torch.inference_mode()
def hf_eager_tpot(checkpoint: Path, threads: int, batch: int, tokens: int) -> Tpot:
    """``generate`` of Transformers with eager attention, a text prompt, in a batch of its own making."""
    torch.set_num_threads(threads)
    auto = cast("Any", AutoModelForImageTextToText)  # untyped in the library
    model = auto.from_pretrained(checkpoint, dtype=torch.bfloat16, attn_implementation="eager").eval()
    ids = torch.randint(300, 900, (batch, 40))
    seconds: list[float] = []
    for length in (1, tokens + 1):
        started = time.perf_counter()
        model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, min_new_tokens=length,
            do_sample=False, pad_token_id=0,
        )  # fmt: skip
        seconds.append(time.perf_counter() - started)
    return Tpot((seconds[1] - seconds[0]) / tokens, _peak_bytes())


def _config(checkpoint: Path, threads: int, vision_dtype: VisionDtype) -> LocalEngineConfig:
    config = cast("Any", AutoConfig.from_pretrained(checkpoint, local_files_only=True))
    half = (0.5, 0.5, 0.5)
    return LocalEngineConfig(
        model_path=checkpoint, model_type=config.model_type, image_token_id=config.image_token_id, eos_token_ids=(),
        image_mean=half, image_std=half, max_model_len=4096, num_threads=threads, vision_dtype=vision_dtype,
    )  # fmt: skip


def _unit(number: int) -> Unit:
    pixels = np.random.default_rng(number).integers(0, 256, 512 * 512 * 3, dtype=np.uint8).tobytes()
    return Unit(key=str(number), picture=0, share=1.0, num_tokens=64, tiles=Tiles(pixels, 1, 512, 512))


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
