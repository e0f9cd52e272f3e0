"""The model's first steps, taken before anybody waits for them.

What runs for the first time compiles kernels, chooses algorithms and takes memory. Requests of every kind go through a
core of their own over the real runner: one tile, a decode step of every batch, a full chunk of a prompt, a full
micro-batch of the encoder. Knows no torch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

from opsin.engine.api import SamplingParams
from opsin.engine.local.config import LocalEngineConfig, PictureShape
from opsin.engine.local.core import EngineCore
from opsin.engine.local.feature_cache import FeatureCache
from opsin.engine.local.messages import PictureData, Submit, Tiles
from opsin.engine.local.prefix_cache import PrefixCache
from opsin.engine.local.runner_api import Runner
from opsin.engine.local.scheduler import ContinuousScheduler, Limits
from opsin.engine.local.traits import TRAITS, EncoderUnit
from opsin.telemetry.logs import fields

logger = logging.getLogger(__name__)

_TEXT_TOKENS = 8


def warm_up(
    config: LocalEngineConfig, runner: Runner, limits: Limits, now: Callable[[], float] = time.monotonic
) -> None:
    """Runs what fits into ``config.warm_up_s``; begins no step later than that. An error is logged and no more."""
    core = EngineCore(config, runner, ContinuousScheduler(limits), FeatureCache(0), PrefixCache(0, 1))
    started = now()
    num_steps = 0
    for together in _kinds(config, limits):
        for submit in together:
            core.submit(submit)
        while core.has_work:
            if now() - started >= config.warm_up_s:
                for submit in together:
                    core.cancel(submit.request_id)
            for failed in core.step().failed:
                logger.warning("warm-up: %s", failed.error.message)
            num_steps += 1
        if now() - started >= config.warm_up_s:
            break
    logger.info("warmed up %s", fields(steps=num_steps, seconds=round(now() - started, 2)))


def _kinds(config: LocalEngineConfig, limits: Limits) -> Iterator[list[Submit]]:
    """Requests that go together, what most first requests need first."""
    pictures = sorted(config.warm_up_pictures, key=lambda shape: shape.image_tokens)
    yield from ([_with_picture(config, shape)] for shape in pictures[:1])
    yield [_text(config, f"warm-up-{number}", _TEXT_TOKENS, number + 2) for number in range(limits.max_num_seqs)]
    yield [_text(config, "warm-up-prompt", min(limits.max_num_tokens_beside_decode, config.max_model_len - 2), 1)]
    yield from ([_with_picture(config, shape)] for shape in _largest(config, limits, pictures[1:]))


def _largest(config: LocalEngineConfig, limits: Limits, shapes: list[PictureShape]) -> list[PictureShape]:
    """What encoder and prefill each take at once; none where tiles are run one by one, as one was by then."""
    is_cut = TRAITS[config.model_type].unit is EncoderUnit.TILE
    most = min(limits.max_num_tokens_beside_decode, config.max_model_len - 2 * _TEXT_TOKENS)
    if is_cut:
        most = min(most, limits.max_num_encoder_tokens)
    return [shape for shape in shapes if shape.image_tokens <= most][-1:]


def _with_picture(config: LocalEngineConfig, shape: PictureShape) -> Submit:
    size = shape.num_tiles * shape.width * shape.height * 3
    # Tiles that are alike would be encoded once.
    pixels = b"".join(bytes([number % 256]) * (size // shape.num_tiles) for number in range(shape.num_tiles))
    picture = PictureData(
        "warm-up", shape.image_tokens, Tiles(pixels, shape.num_tiles, shape.width, shape.height, shape.original)
    )
    text = _text(config, f"warm-up-{shape.image_tokens}", _TEXT_TOKENS, 2)
    ids = (*text.prompt_ids, *(config.image_token_id,) * shape.image_tokens, text.prompt_ids[0])
    return Submit(text.request_id, "", ids, (picture,), text.sampling, text.submitted_at)


def _text(config: LocalEngineConfig, name: str, num_tokens: int, max_tokens: int) -> Submit:
    token = int(config.image_token_id == 0)  # any that is no picture's
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return Submit(name, "", (token,) * max(num_tokens, 1), (), sampling, time.monotonic())
