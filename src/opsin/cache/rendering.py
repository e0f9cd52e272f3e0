"""What the sandbox made of a picture, kept: its tiles, its smaller version, or that it decodes.

Kept by scope, the picture's digest, and everything that the result depends on. Several requests that want the same at
once wait for one worker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import msgspec

from opsin.cache.flight import Flights
from opsin.cache.keys import framed
from opsin.cache.store import MISS, Item, Store
from opsin.cache.tier import Kind, Value
from opsin.core.errors import MediaError
from opsin.media.encoding import Encoding
from opsin.media.types import ImageHeader, MediaBytes, RenderedPicture
from opsin.vision.recipe import RenderRecipe
from opsin.vision.size import Size

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

_VARIANT_CHARS = 32
_VERIFIED = Value(b"", b"")


class Sandbox(Protocol):
    """Decodes pictures in a worker, see :class:`opsin.media.pool.RenderPool`."""

    async def render(self, media: MediaBytes, recipe: RenderRecipe) -> RenderedPicture: ...

    async def verify(self, media: MediaBytes) -> None: ...

    async def scale(self, media: MediaBytes, size: Size, encoding: Encoding) -> MediaBytes: ...


@dataclass(frozen=True, slots=True)
class Made(Generic[T]):
    """What a picture became. ``outcome``: ``hit-`` and the tier that had it; ``miss`` also for who waited for another
    request's worker."""

    result: T
    outcome: str


class _Tiles(msgspec.Struct, array_like=True, frozen=True):
    num_tiles: int
    width: int
    height: int


class _Written(msgspec.Struct, array_like=True, frozen=True):
    sha256: str


class CachedRenderer:
    """A sandbox that does nothing twice while it is remembered. ``identity`` is of everything besides the recipe that
    decides on pixels, as versions and render mode. Lives in one event loop."""

    def __init__(self, sandbox: Sandbox, store: Store, identity: tuple[str, ...]) -> None:
        self._sandbox = sandbox
        self._store = store
        self._identity = framed(identity)
        self._renders: Flights[Made[RenderedPicture]] = Flights()
        self._scales: Flights[Made[MediaBytes]] = Flights()
        self._verifies: Flights[Made[None]] = Flights()

    async def render(self, scope: str, media: MediaBytes, recipe: RenderRecipe) -> Made[RenderedPicture]:
        """The tiles of a picture. Raises as RenderPool."""
        item = self._item(scope, media, Kind.RENDER, recipe)
        return await _about(media, self._renders.run(item, lambda: self._rendered(item, media, recipe)))

    async def verify(self, scope: str, media: MediaBytes) -> Made[None]:
        """Decodes a picture completely, unless one of the same bytes did. Raises as RenderPool."""
        item = self._item(scope, media, Kind.VERIFIED, None)
        return await _about(media, self._verifies.run(item, lambda: self._verified(item, media)))

    async def scale(self, scope: str, media: MediaBytes, size: Size, encoding: Encoding) -> Made[MediaBytes]:
        """A picture scaled down and written anew. Raises as RenderPool."""
        item = self._item(scope, media, Kind.SCALED, (size, encoding))
        made = await _about(media, self._scales.run(item, lambda: self._scaled(item, media, size, encoding)))
        return Made(replace(made.result, param=media.param, mislabelled=media.mislabelled), made.outcome)

    def _item(self, scope: str, media: MediaBytes, kind: Kind, how: object) -> Item:
        # The header too: of the same bytes it differs only by what this version reads from them.
        variant = self._identity + msgspec.json.encode((media.header, how))
        return Item(scope, media.sha256, kind, hashlib.sha256(variant).hexdigest()[:_VARIANT_CHARS])

    async def _rendered(self, item: Item, media: MediaBytes, recipe: RenderRecipe) -> Made[RenderedPicture]:
        found = await self._store.get(item)
        if found is not None and (tiles := _read(found.value.head, _Tiles)) is not None:
            kept = RenderedPicture(found.value.data, tiles.num_tiles, Size(tiles.width, tiles.height))
            return Made(kept, found.outcome)
        rendered = await self._sandbox.render(media, recipe)
        head = _Tiles(rendered.num_tiles, rendered.tile.width, rendered.tile.height)
        await self._store.put(item, Value(msgspec.msgpack.encode(head), rendered.pixels))
        return Made(rendered, MISS)

    async def _verified(self, item: Item, media: MediaBytes) -> Made[None]:
        if (found := await self._store.get(item)) is not None:
            return Made(None, found.outcome)
        await self._sandbox.verify(media)
        await self._store.put(item, _VERIFIED)
        return Made(None, MISS)

    async def _scaled(self, item: Item, media: MediaBytes, size: Size, encoding: Encoding) -> Made[MediaBytes]:
        found = await self._store.get(item)
        if found is not None and (written := _read(found.value.head, _Written)) is not None:
            header = ImageHeader(encoding.format, size, orientation=1, frames=1)
            kept = replace(media, data=found.value.data, sha256=written.sha256, header=header, base64=None)
            return Made(kept, found.outcome)
        scaled = await self._sandbox.scale(media, size, encoding)
        await self._store.put(item, Value(msgspec.msgpack.encode(_Written(scaled.sha256)), scaled.data))
        return Made(scaled, MISS)


async def _about(media: MediaBytes, work: Awaitable[T]) -> T:
    """Names in an error this request's picture, and not that of whoever came first."""
    try:
        return await work
    except MediaError as error:
        if error.param == media.param:
            raise
        raise type(error)(error.message, code=error.code, param=media.param) from None


def _read(head: bytes, kind: type[S]) -> S | None:
    """None for what another version wrote."""
    try:
        return msgspec.msgpack.decode(head, type=kind)
    except msgspec.MsgspecError:
        return None
