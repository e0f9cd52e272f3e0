"""Attacks on the server that these settings would start: the findings of ``opsin doctor media``.

The media's own vectors, a picture and ways out in real confined processes, and the model's added tokens as text.
Downloads and dials nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from opsin.core.errors import ConfigError, OpsinError
from opsin.media.config import MediaConfig
from opsin.media.escape import REFUSED, Way, attempt
from opsin.media.loader import inspect
from opsin.media.pool import RenderPool
from opsin.media.sandbox import look
from opsin.media.self_check import Check, check_intake
from opsin.media.warm_up import samples
from opsin.models.card import load_card
from opsin.models.hub import resolve
from opsin.prompt.tokenizer import Tokenizer
from opsin.settings import EngineKind, Settings

_DECODED = "decoded"
_TEXT = "text"


@dataclass(frozen=True, slots=True)
class Findings:
    """All checks, and how far a worker that was started is confined; None when none could be."""

    sandbox: str | None
    checks: tuple[Check, ...]


async def attack(settings: Settings) -> Findings:
    """Runs every vector."""
    level, decoding = await _decode(settings.media)
    ways = [check async for check in _ways_out(settings.media)]
    placeholders = await asyncio.to_thread(_placeholders, settings)
    return Findings(level, (*check_intake(settings.media), decoding, *ways, placeholders))


async def _decode(config: MediaConfig) -> tuple[str | None, Check]:
    """A picture of the first accepted format, in a worker as the server starts it."""
    vector = f"worker, a whole {config.formats[0].written}"
    pool = RenderPool(config.model_copy(update={"render_workers": 1}))
    try:
        await pool.start()
    except ConfigError as error:
        return None, Check(vector, _DECODED, error.message)
    try:
        return look(pool.worker_pids[0]).level.label, Check(vector, _DECODED, await _verified(pool, config))
    finally:
        await pool.close()


async def _verified(pool: RenderPool, config: MediaConfig) -> str:
    try:
        await pool.verify(inspect(samples(config.formats[0])[0], config, "doctor"))
    except OpsinError as error:
        return error.code
    return _DECODED


async def _ways_out(config: MediaConfig) -> AsyncIterator[Check]:
    for way in Way:
        yield Check(f"worker, taken over, {way}", REFUSED, await attempt(way, config))


def _placeholders(settings: Settings) -> Check:
    """Every added token of the model, ``<image>`` among them, as a user would write it."""
    vector = "text, every special token of the model"
    if settings.engine in (EngineKind.UPSTREAM, EngineKind.TRITON, EngineKind.API):
        return Check(vector, _TEXT, "not run: the upstream makes tokens of text itself", is_run=False)
    hub = settings.hub.model_copy(update={"offline": True})
    try:
        card = load_card(resolve(settings.model_location, settings.revision, hub=hub))
        tokenizer = Tokenizer.from_file(card.tokenizer_path)
    except ConfigError as error:
        return Check(vector, _TEXT, f"not run: {error.message}", is_run=False)
    special = [text for text in tokenizer.added_tokens if _becomes_a_token(text, tokenizer)]
    return Check(vector, _TEXT, f"{len(special)} become tokens" if special else _TEXT)


def _becomes_a_token(text: str, tokenizer: Tokenizer) -> bool:
    return not tokenizer.added_token_ids.isdisjoint(tokenizer.encode_plain(f"a {text}{text} b"))
