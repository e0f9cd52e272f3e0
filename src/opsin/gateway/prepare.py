"""From a prompt and its loaded pictures to what an engine reads.

One preparer per kind of engine: a TOKENS engine gets token ids and rendered pixels, a MESSAGES engine gets the
conversation and the original bytes. Both run between ``media.load`` and ``engine.submit``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from opsin.cache.keys import FeatureKeys
from opsin.core.conversation import Prompt, RawPrompt
from opsin.core.errors import ContextLengthExceeded, UnsupportedParameter
from opsin.core.together import together
from opsin.core.warnings import AnswerWarning
from opsin.engine.api import ChatPrompt, Engine, Picture, TokenPrompt
from opsin.gateway.budget import check_image_tokens
from opsin.gateway.config import GatewayConfig
from opsin.media.types import MediaBytes, RenderedPicture
from opsin.prompt.build import PromptBuilder
from opsin.prompt.guard import TextGuard
from opsin.telemetry.metrics import Metrics
from opsin.vision.plan import NativeFamily, RenderRecipe, VisionPlan

LONG_TEXT_CHARS = 8192
"""Longer texts are read beside the event loop; the hop costs more than tokenising a short one."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What ``engine.submit`` needs; ``max_tokens`` is what the context leaves, None if the limit is unknown.

    ``text`` is the rendered prompt, each picture one placeholder; None where the engine applies its own template.
    ``warnings`` are about the prompt.
    """

    prompt: TokenPrompt | ChatPrompt
    pictures: tuple[Picture, ...]
    max_tokens: int | None
    text: str | None = None
    warnings: tuple[AnswerWarning, ...] = ()


class Renderer(Protocol):
    """Decodes pictures apart from this process."""

    async def render(self, media: MediaBytes, recipe: RenderRecipe) -> RenderedPicture:
        """The tiles of a picture. Raises MediaError."""
        ...

    async def verify(self, media: MediaBytes) -> None:
        """Decodes a picture completely and returns nothing. Raises MediaError."""
        ...


class Preparer(Protocol):
    """Prepares one request; may take leases that end with the request."""

    async def prepare(
        self,
        request_id: str,
        scope: str,
        prompt: Prompt,
        media: Sequence[MediaBytes],
        max_tokens: int | None,
    ) -> Prepared:
        """Raises MediaError for a picture that cannot be rendered, ContextLengthExceeded for one that does not fit,
        InvalidRequest for a prompt that this engine cannot read."""
        ...


class TokenPreparer:
    """For engines that read token ids and pixels: plan → budget → reserve → render → build."""

    def __init__(
        self,
        *,
        family: NativeFamily,
        keys: FeatureKeys,
        engine: Engine,
        renderer: Renderer,
        builder: PromptBuilder,
        metrics: Metrics,
        limits: GatewayConfig,
        max_model_len: int,
    ) -> None:
        self._family = family
        self._keys = keys
        self._engine = engine
        self._renderer = renderer
        self._builder = builder
        self._metrics = metrics
        self._limits = limits
        self._max_model_len = max_model_len

    async def prepare(
        self,
        request_id: str,
        scope: str,
        prompt: Prompt,
        media: Sequence[MediaBytes],
        max_tokens: int | None,
    ) -> Prepared:
        """See Preparer."""
        prompt = self._builder.settle(prompt)
        details = [ref.detail for ref in prompt.media()]
        plans = [
            self._family.plan(picture.header.upright, detail) for picture, detail in zip(media, details, strict=True)
        ]
        check_image_tokens(media, plans, self._limits)
        image_tokens = sum(plan.image_tokens for plan in plans)
        self._refuse_early(prompt, plans, max_tokens or 1)
        keys = [self._keys.key(scope, picture.sha256, plan) for picture, plan in zip(media, plans, strict=True)]
        reservation = await self._engine.reserve(request_id, keys)
        self._count_lookups(keys, reservation.leased)
        pictures = await self._render(media, plans, keys, reservation.leased)
        if prompt.num_chars > LONG_TEXT_CHARS:
            built = await asyncio.to_thread(self._builder.build, prompt, plans)
        else:
            built = self._builder.build(prompt, plans)
        room = self._room(len(built.ids), image_tokens, max_tokens)
        return Prepared(TokenPrompt(built.ids), pictures, max_tokens or room, built.text)

    def _refuse_early(self, prompt: Prompt, plans: Sequence[VisionPlan], wanted: int) -> None:
        """Before anything is rendered: what cannot fit however the text is tokenised, which is done if it is short."""
        image_tokens = sum(plan.image_tokens for plan in plans)
        least = self._builder.least_tokens(prompt)
        if least + image_tokens + wanted <= self._max_model_len:
            return
        if prompt.num_chars > LONG_TEXT_CHARS:
            raise self._too_long(f"at least {max(1, least)}", image_tokens, wanted)
        raise self._too_long(f"{len(self._builder.build(prompt, plans).ids) - image_tokens}", image_tokens, wanted)

    def _room(self, prompt_tokens: int, image_tokens: int, max_tokens: int | None) -> int:
        """The tokens that the context leaves for output. Raises ContextLengthExceeded when they are too few."""
        room = self._max_model_len - prompt_tokens
        wanted = max_tokens or 1
        if room < wanted:
            raise self._too_long(f"{prompt_tokens - image_tokens}", image_tokens, wanted)
        return room

    def _too_long(self, text_tokens: str, image_tokens: int, wanted: int) -> ContextLengthExceeded:
        return ContextLengthExceeded(
            f"the prompt has {text_tokens} text and {image_tokens} image tokens, and {wanted} output tokens were "
            f"asked for, but max_model_len is {self._max_model_len}",
            param="max_tokens" if wanted > self._max_model_len else "messages",
        )

    def _count_lookups(self, keys: Sequence[str], leased: frozenset[str]) -> None:
        hits = sum(key in leased for key in keys)
        self._metrics.looked_up(hits=hits, misses=len(keys) - hits)

    async def _render(
        self, media: Sequence[MediaBytes], plans: Sequence[VisionPlan], keys: Sequence[str], leased: frozenset[str]
    ) -> tuple[Picture, ...]:
        return await together(
            self._picture(picture, plan, key, known=key in leased)
            for picture, plan, key in zip(media, plans, keys, strict=True)
        )

    async def _picture(self, media: MediaBytes, plan: VisionPlan, key: str, *, known: bool) -> Picture:
        rendered = None
        if not known:
            started = time.monotonic()
            rendered = await self._renderer.render(media, plan.recipe)
            self._metrics.preprocess.observe(time.monotonic() - started)
        return Picture(key=key, image_tokens=plan.image_tokens, num_tiles=plan.num_tiles, rendered=rendered)


class MessagePreparer:
    """For engines with a template of their own: every picture is decoded once in the sandbox, then sent as it came.

    Texts are kept from spelling special tokens, because the engine tokenises them together with its template.
    """

    def __init__(self, *, renderer: Renderer, guard: TextGuard, metrics: Metrics) -> None:
        self._renderer = renderer
        self._guard = guard
        self._metrics = metrics

    async def prepare(
        self,
        request_id: str,
        scope: str,
        prompt: Prompt,
        media: Sequence[MediaBytes],
        max_tokens: int | None,
    ) -> Prepared:
        """See Preparer."""
        if isinstance(prompt, RawPrompt):
            if not prompt.pictures or not isinstance(prompt.text, str):
                raise UnsupportedParameter(
                    "a raw prompt needs the local engine: this one applies its own template; send a chat instead",
                    param="prompt",
                )
            prompt = prompt.as_turn()
        if prompt.num_chars > LONG_TEXT_CHARS:
            guarded = await asyncio.to_thread(self._guard.guard, prompt)
        else:
            guarded = self._guard.guard(prompt)
        pictures = await together(self._picture(picture) for picture in media)
        return Prepared(ChatPrompt(guarded.conversation), pictures, max_tokens, warnings=guarded.warnings)

    async def _picture(self, media: MediaBytes) -> Picture:
        started = time.monotonic()
        await self._renderer.verify(media)
        self._metrics.preprocess.observe(time.monotonic() - started)
        return Picture(key=media.sha256, image_tokens=None, num_tiles=None, media=media)
