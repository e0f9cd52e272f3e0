"""Fault injection in the gateway's own stages: the same objects, slower by a known time.

With ``inject_delay_s`` set, :mod:`opsin.app` wraps loader, renderer and engine in these; the stages themselves know
nothing of it. The local engine's stages have wrappers of their own beside the runner.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from opsin.core.conversation import MediaRef
from opsin.engine.api import (
    Capabilities,
    Engine,
    EngineStats,
    GenerationRequest,
    PurgeReport,
    Reservation,
    StreamEvent,
)
from opsin.media.encoding import Encoding
from opsin.media.loader import MediaLoader
from opsin.media.pool import RenderPool
from opsin.media.types import Glance, LiftedMedia, MediaBytes, RenderedPicture
from opsin.vision.plan import RenderRecipe, Size


class DelayedLoader:
    """A loader that sleeps before each request's pictures."""

    def __init__(self, loader: MediaLoader, seconds: float) -> None:
        self._loader = loader
        self._seconds = seconds

    async def load(self, refs: Sequence[MediaRef], lifted: LiftedMedia) -> tuple[MediaBytes, ...]:
        """See MediaLoader."""
        await asyncio.sleep(self._seconds)
        return await self._loader.load(refs, lifted)

    async def glance(self, refs: Sequence[MediaRef], lifted: LiftedMedia) -> tuple[Glance, ...]:
        """See MediaLoader."""
        await asyncio.sleep(self._seconds)
        return await self._loader.glance(refs, lifted)


class DelayedRenderer:
    """A render pool that sleeps before each picture."""

    def __init__(self, renderer: RenderPool, seconds: float) -> None:
        self._renderer = renderer
        self._seconds = seconds

    async def render(self, media: MediaBytes, recipe: RenderRecipe) -> RenderedPicture:
        """See RenderPool."""
        await asyncio.sleep(self._seconds)
        return await self._renderer.render(media, recipe)

    async def verify(self, media: MediaBytes) -> None:
        """See RenderPool."""
        await asyncio.sleep(self._seconds)
        await self._renderer.verify(media)

    async def scale(self, media: MediaBytes, size: Size, encoding: Encoding) -> MediaBytes:
        """See RenderPool."""
        await asyncio.sleep(self._seconds)
        return await self._renderer.scale(media, size, encoding)


class DelayedEngine:
    """An engine whose requests wait before they reach it."""

    def __init__(self, engine: Engine, seconds: float) -> None:
        self._engine = engine
        self._seconds = seconds

    async def start(self) -> None:
        """See Engine."""
        await self._engine.start()

    async def close(self) -> None:
        """See Engine."""
        await self._engine.close()

    def capabilities(self) -> Capabilities:
        """See Engine."""
        return self._engine.capabilities()

    def unready_reason(self) -> str | None:
        """See Engine."""
        return self._engine.unready_reason()

    async def reserve(self, request_id: str, keys: Sequence[str]) -> Reservation:
        """See Engine."""
        return await self._engine.reserve(request_id, keys)

    async def release(self, request_id: str) -> None:
        """See Engine."""
        await self._engine.release(request_id)

    async def submit(self, request: GenerationRequest) -> AsyncGenerator[StreamEvent, None]:
        """See Engine."""
        await asyncio.sleep(self._seconds)
        async with aclosing(self._engine.submit(request)) as events:
            async for event in events:
                yield event

    async def cancel(self, request_id: str) -> None:
        """See Engine."""
        await self._engine.cancel(request_id)

    async def purge(self, scope: str, key: str | None) -> PurgeReport:
        """See Engine."""
        return await self._engine.purge(scope, key)

    async def stats(self) -> EngineStats:
        """See Engine."""
        return await self._engine.stats()
