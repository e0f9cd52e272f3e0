"""Files of every format, damaged by chance, through real workers: a picture, or an error about the picture.

The same mutators ran 64 000 times while this was written; here they run often enough to notice that something broke.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from opsin.core.errors import MediaError
from opsin.media.config import MediaConfig
from opsin.media.loader import inspect
from opsin.media.pool import RenderPool
from opsin.media.types import ImageFormat
from tests.corpus.mutations import MUTATORS, originals
from tests.corpus.recipes import CUT

NUM_MUTATIONS = 60
CONFIG = MediaConfig(formats=tuple(ImageFormat), render_timeout_s=60)
CODES = {
    *("image_undecodable", "image_truncated", "image_decode_memory", "image_feature_unsupported"),
    *("media_too_large", "image_aspect_ratio", "unsupported_image_format"),
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pool() -> AsyncIterator[RenderPool]:
    pool = RenderPool(CONFIG)
    await pool.start()
    yield pool
    await pool.close()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("image_format", ImageFormat)
async def test_whatever_is_damaged_costs_one_picture(pool: RenderPool, image_format: ImageFormat) -> None:
    chance = random.Random(f"{image_format} 1")
    files, workers, outcomes = originals(image_format), pool.worker_pids, Counter[str]()
    for _ in range(NUM_MUTATIONS):
        data = bytearray(chance.choice(files))
        chance.choice(MUTATORS)(chance, data)
        outcomes[await outcome(pool, bytes(data))] += 1
    assert set(outcomes) <= {"good", *CODES}, outcomes
    assert len(outcomes) >= 3, outcomes
    assert pool.worker_pids == workers


async def outcome(pool: RenderPool, data: bytes) -> str:
    try:
        await pool.render(inspect(data, CONFIG, "p"), CUT)
    except MediaError as error:
        return error.code
    return "good"
