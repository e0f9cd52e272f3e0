"""``ImagePreprocessor``: pictures made ready for a model before they are sent, with a server's sandbox and tiers.

A picture is scaled down to a longest side, both sides to whole multiples of the model's visual tokens, and written as
JPEG; what was made of the same bytes before is not made again.
"""

from __future__ import annotations

import asyncio
import os
import re
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import pybase64

from opsin.background import BackgroundLoop
from opsin.cache.rendering import CachedRenderer
from opsin.caching import Caches, caches_of
from opsin.core.errors import ConfigError
from opsin.counting import find_model
from opsin.media.config import MediaConfig
from opsin.media.encoding import Encoding
from opsin.media.loader import inspect
from opsin.media.pool import RenderPool
from opsin.media.types import ImageFormat
from opsin.settings import Settings, load_settings
from opsin.telemetry.metrics import Metrics
from opsin.tenancy import server_secret
from opsin.vision.registry import family_for
from opsin.vision.size import Size

TENANT = "preprocess"
QWEN_BLOCK = 28
"""Pixels per side of a visual token of Qwen2-VL and Qwen2.5-VL."""
_MAX_BLOCK = 64
_FORMAT = re.compile(r"(jpeg):([1-9][0-9]?|100)|(png)")

Output = Literal["base64", "bytes"]


@dataclass(frozen=True, slots=True)
class Fitting:
    """To which size a picture is brought: its longest side, and the block of which both sides are multiples."""

    max_side: int
    min_side: int
    block: int = QWEN_BLOCK

    def fit(self, size: Size) -> Size:
        """Scaled down where it is too large, then cut back to whole blocks; never under ``min_side``."""
        width, height = size.width, size.height
        if max(width, height) > self.max_side:
            ratio = self.max_side / max(width, height)
            width, height = int(width * ratio), int(height * ratio)
        return Size(
            max(self.min_side, width // self.block * self.block), max(self.min_side, height // self.block * self.block)
        )


class ImagePreprocessor:
    """Works in scripts and from several threads. Leave it with ``close``, or use it as a context manager.

    Without an argument ``MAX_IMAGE_SIZE``, ``OUTPUT_FORMAT`` (``base64``, ``bytes``) and ``REDIS_URL`` of the
    environment count. Limits on pictures are those of ``media.*``, from a file or as ``OPSIN_MEDIA__MAX_IMAGE_PIXELS``.
    With the same ``OPSIN_GATEWAY__SERVER_SECRET_FILE`` several share what they keep in Redis.
    """

    def __init__(
        self,
        max_size: int | None = None,
        min_size: int = QWEN_BLOCK,
        redis_url: str | None = None,
        *,
        model: str | None = None,
        image_format: str = "jpeg:85",
        output: str | None = None,
        config: Path | None = None,
    ) -> None:
        """Starts a sandboxed worker.

        Args:
            max_size: pixels of the longest side; 2048 where nothing says otherwise.
            min_size: pixels that no side falls under.
            redis_url: where results are kept for an hour; without one, in memory.
            model: folder or hub id; both sides become multiples of its visual tokens. Default: 28, as Qwen2-VL's.
            image_format: ``jpeg:QUALITY`` or ``png``.
            output: what ``process`` returns: ``base64`` or ``bytes``.
            config: TOML file of settings; ``opsin.toml`` of the working directory where there is one.

        Raises:
            ConfigError: a value is wrong, or there is no such model or file.
        """
        max_side = _max_size() if max_size is None else max_size
        if max_side < 1:
            raise ConfigError(f"the longest side (max_size, --max-side) is {max_side}; it must be at least 1")
        if not 1 <= min_size <= min(max_side, _MAX_BLOCK):
            raise ConfigError(
                f"the shortest side (min_size, --min-side) is {min_size}; it must be from 1 to {_MAX_BLOCK}, and not "
                f"over the longest one, which is {max_side}"
            )
        self._fitting = Fitting(max_side, min_size, block_of(model, config) if model else QWEN_BLOCK)
        self._encoding = encoding_of(image_format)
        self._output = _output(output or os.environ.get("OUTPUT_FORMAT") or "base64")
        url = redis_url or os.environ.get("REDIS_URL")
        settings = load_settings({"redis_url": url} if url else {}, config)
        self._config = settings.media.model_copy(update={"render_workers": 1})
        self._background = BackgroundLoop("opsin-preprocess")
        try:
            self._pool, self._caches, self._renderer = self._background.run(lambda: _started(self._config, settings))
        except BaseException:
            self._background.finish(_nothing)
            raise
        self._finalizer = weakref.finalize(self, _end, self._background, self._pool, self._caches)

    @property
    def max_image_bytes(self) -> int:
        """A larger picture is refused."""
        return self._config.max_image_bytes

    def process(self, image_bytes: bytes) -> str | bytes:
        """The picture, scaled and written: base64 text, or bytes.

        Raises:
            MediaError: it is no picture, too large, or does not decode.
        """
        data = self._background.run(lambda: self._scaled(image_bytes))
        return data if self._output == "bytes" else pybase64.b64encode(data).decode()

    def close(self) -> None:
        """Ends the worker. Safe to call twice."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _scaled(self, data: bytes) -> bytes:
        media = inspect(data, self._config, "image")
        size = self._fitting.fit(media.header.upright)
        made = await self._renderer.scale(self._caches.scopes.of(TENANT), media, size, self._encoding)
        await self._caches.store.written()
        return made.result.data


def block_of(model: str, config: Path | None = None) -> int:
    """Pixels per side of a model's visual token; 1 for a family whose processor cuts pictures otherwise.

    ``config`` is a TOML file that has to exist if it is named.

    Raises:
        ConfigError: there is no such model or file, or no rule for the model's type.
    """
    block = getattr(family_for(find_model(load_settings({"model": model}, config)).vision), "factor", 1)
    return block if isinstance(block, int) else 1


def encoding_of(text: str) -> Encoding:
    """``jpeg:85`` or ``png``. Raises ConfigError."""
    found = _FORMAT.fullmatch(text)
    if found is None:
        raise ConfigError(f"the format is {text!r}; it must be jpeg:QUALITY, with 1 to 100, or png")
    if found[3]:
        return Encoding(ImageFormat.PNG)
    return Encoding(ImageFormat.JPEG, int(found[2]), is_subsampled=True)


def _max_size() -> int:
    text = os.environ.get("MAX_IMAGE_SIZE") or "2048"
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 8192):
        raise ConfigError(f"MAX_IMAGE_SIZE is {text!r}; it must be from 1 to 8192")
    return int(text)


def _output(text: str) -> Output:
    match text:
        case "base64" | "bytes":
            return text
        case _:
            raise ConfigError(f"OUTPUT_FORMAT is {text!r}; it must be base64 or bytes")


async def _started(config: MediaConfig, settings: Settings) -> tuple[RenderPool, Caches, CachedRenderer]:
    metrics = Metrics(stages=frozenset(), cache=False, kv=False)
    caches = caches_of(settings.cache, metrics, secret=server_secret(settings), url=settings.redis_url)
    pool = RenderPool(config)
    await pool.start()
    return pool, caches, CachedRenderer(pool, caches.store, ("preprocess",))


async def _nothing() -> None:
    pass


def _end(background: BackgroundLoop, pool: RenderPool, caches: Caches) -> None:
    async def close() -> None:
        await asyncio.gather(pool.close(), caches.close())

    background.finish(close)
    background.join()
