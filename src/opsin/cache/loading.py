"""Pictures of a request from wherever they are: with the request, uploaded before, kept from a URL, or fetched now."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from functools import partial

from opsin.cache.files import FileShelf
from opsin.cache.urls import UrlMemory
from opsin.core.conversation import FILE_ID, MediaRef
from opsin.core.errors import Code, InvalidRequest, MediaError, OpsinError
from opsin.media.blocking import BlockingCalls
from opsin.media.config import LimitPerPrompt, MediaConfig
from opsin.media.loader import MediaLoader, inspect
from opsin.media.types import Glance, Lift, LiftedMedia, MediaBytes

_DIGEST = "sha256:"
_HEX = re.compile("[0-9a-f]{64}")
_MAX_READS = 4


NOBODY = ""
"""The scope of a command of this machine's user, who uploads nothing."""


class Unscoped:
    """A loader that keeps nothing and knows no files of tenants, for such commands."""

    def __init__(self, loader: MediaLoader) -> None:
        self._loader = loader

    async def glance(self, scope: str, refs: Sequence[MediaRef], lifted: LiftedMedia) -> tuple[Glance, ...]:
        """See MediaLoader."""
        return await self._loader.glance(refs, lifted)


class CachedLoader:
    """A loader for tenants that upload files, and that knows what their URLs held a moment ago."""

    def __init__(self, loader: MediaLoader, config: MediaConfig, files: FileShelf, urls: UrlMemory) -> None:
        self._loader = loader
        self._config = config
        self._files = files
        self._urls = urls
        self._hashes = BlockingCalls("opsin-file", _MAX_READS)

    def under(self, limit: LimitPerPrompt) -> CachedLoader:
        """See MediaLoader."""
        other = copy(self)
        other._loader = self._loader.under(limit)
        other._config = self._config.model_copy(update={"limit_mm_per_prompt": limit})
        return other

    async def load(self, scope: str, refs: Sequence[MediaRef], lifted: LiftedMedia) -> tuple[MediaBytes, ...]:
        """See MediaLoader; also raises NotFound for a file or a digest that this tenant did not upload."""
        return await self._loader.load(refs, await self._with_files(scope, refs, lifted), self._urls.of(scope))

    async def glance(self, scope: str, refs: Sequence[MediaRef], lifted: LiftedMedia) -> tuple[Glance, ...]:
        """See MediaLoader; raises as ``load``."""
        return await self._loader.glance(refs, await self._with_files(scope, refs, lifted))

    async def _with_files(self, scope: str, refs: Sequence[MediaRef], lifted: LiftedMedia) -> LiftedMedia:
        found: dict[str, Lift] = {}
        for ref in refs[: self._config.limit_mm_per_prompt.image]:  # the loader refuses more, by their number
            if ref.url.startswith((_DIGEST, FILE_ID)) and ref.url not in found:
                found[ref.url] = await self._file(scope, ref)
        return {**lifted, **found} if found else lifted

    async def _file(self, scope: str, ref: MediaRef) -> Lift:
        try:
            data = await self._data(scope, ref.url)
            return await self._hashes.run(partial(inspect, data, self._config, ref.param))
        except MediaError as error:
            return error
        except OpsinError as error:
            error.param = ref.param
            raise

    async def _data(self, scope: str, url: str) -> bytes:
        if url.startswith(FILE_ID):
            return await self._files.content(scope, url.removeprefix(FILE_ID))
        digest = url.removeprefix(_DIGEST)
        if not _HEX.fullmatch(digest):
            raise InvalidRequest(
                "a picture by its digest is 'sha256:' and 64 lower-case hex digits", code=Code.INVALID_DIGEST
            )
        return await self._files.picture(scope, digest)
