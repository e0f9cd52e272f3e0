"""Uploaded pictures: judged and decoded like any other, then kept."""

from __future__ import annotations

from functools import partial

from opsin.cache.files import FileShelf, StoredFile
from opsin.gateway.erasing import Eraser
from opsin.gateway.prepare import Renderer
from opsin.gateway.upload_form import FORM_OVERHEAD_BYTES, Upload, UploadForm
from opsin.media.blocking import BlockingCalls
from opsin.media.config import MediaConfig
from opsin.media.loader import inspect

_MAX_CALLS = 4


class Uploads:
    """Takes files in. Lives in one event loop."""

    def __init__(self, files: FileShelf, renderer: Renderer, eraser: Eraser, config: MediaConfig) -> None:
        self._files = files
        self._renderer = renderer
        self._eraser = eraser
        self._config = config
        self._calls = BlockingCalls("opsin-upload", _MAX_CALLS)

    @property
    def max_body_bytes(self) -> int:
        """Of a form."""
        return self._config.max_image_bytes + FORM_OVERHEAD_BYTES

    def form(self, content_type: str) -> UploadForm:
        """For the body of a request, piece by piece. Raises InvalidRequest."""
        return UploadForm(content_type, self._config.max_image_bytes)

    async def add(self, scope: str, upload: Upload) -> StoredFile:
        """Keeps a file.

        Raises:
            MediaError: it holds no picture that would be served.
            FileQuotaExceeded, Overloaded: as FileShelf.
        """
        look = partial(inspect, upload.data, self._config, "file", sha256=upload.sha256)
        media = await self._calls.run(look)
        await self._renderer.verify(scope, media)
        await self._eraser.allow(scope, media.sha256)
        return await self._files.add(scope, media.sha256, media.data, upload.filename, upload.ttl_s)
