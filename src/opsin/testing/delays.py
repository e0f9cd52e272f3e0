"""Fault injection in the gateway's own stages: the same objects, slower by a known time.

With ``inject_delay_s`` set, :mod:`opsin.app` wraps loader, renderer and engine in these; the stages themselves know
nothing of it. The local engine's stages have wrappers of their own beside the runner.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from opsin.cache.loading import CachedLoader
from opsin.cache.rendering import CachedRenderer, Made
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
from opsin.media.types import Glance, LiftedMedia, MediaBytes, RenderedPicture
from opsin.vision.plan import RenderRecipe, Size


class DelayedLoader:
    """A loader that sleeps before each request's pictures."""

    def __init__(self, loader: CachedLoader, seconds: float) -> None:
        self._loader = loader
        self._seconds = seconds

    async def load(self, scope: str, refs: Sequence[MediaRef], lifted: LiftedMedia) -> tuple[MediaBytes, ...]:
        """See CachedLoader."""
        await asyncio.sleep(self._seconds)
        return await self._loader.load(scope, refs, lifted)

    async def glance(self, scope: str, refs: Sequence[MediaRef], lifted: LiftedMedia) -> tuple[Glance, ...]:
        """See CachedLoader."""
        await asyncio.sleep(self._seconds)
        return await self._loader.glance(scope, refs, lifted)


class DelayedRenderer:
    """A renderer that sleeps before each picture."""

    def __init__(self, renderer: CachedRenderer, seconds: float) -> None:
        self._renderer = renderer
        self._seconds = seconds

    async def render(self, scope: str, media: MediaBytes, recipe: RenderRecipe) -> Made[RenderedPicture]:
        """See CachedRenderer."""
        await asyncio.sleep(self._seconds)
        return await self._renderer.render(scope, media, recipe)

    async def verify(self, scope: str, media: MediaBytes) -> Made[None]:
        """See CachedRenderer."""
        await asyncio.sleep(self._seconds)
        return await self._renderer.verify(scope, media)

    async def scale(self, scope: str, media: MediaBytes, size: Size, encoding: Encoding) -> Made[MediaBytes]:
        """See CachedRenderer."""
        await asyncio.sleep(self._seconds)
        return await self._renderer.scale(scope, media, size, encoding)


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

    async def purge(self, scope: str, origin: str | None) -> PurgeReport:
        """See Engine."""
        return await self._engine.purge(scope, origin)

    async def stats(self) -> EngineStats:
        """See Engine."""
        return await self._engine.stats()
