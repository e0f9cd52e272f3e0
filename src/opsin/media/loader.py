"""From references to loaded pictures: bytes, hash, header, all limits. Nothing is decoded, and no model is known."""

from __future__ import annotations

import asyncio
import hashlib
import re
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from opsin.core.conversation import MediaRef
from opsin.core.errors import Code, MediaError, MediaSourceForbidden
from opsin.media import data_url, limits
from opsin.media.config import MediaConfig
from opsin.media.header import read_header
from opsin.media.types import Lift, LiftedMedia, MediaBytes

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]{0,15}):")
_FLAGS = {"http": "--allowed-media-domains", "https": "--allowed-media-domains", "file": "--allowed-local-media-path"}

NONE_LIFTED: LiftedMedia = MappingProxyType({})


class MediaLoader:
    """Loads the pictures of a request."""

    def __init__(self, config: MediaConfig) -> None:
        self._config = config

    async def load(self, refs: Sequence[MediaRef], lifted: LiftedMedia = NONE_LIFTED) -> tuple[MediaBytes, ...]:
        """The pictures in the order of ``refs``; ``lifted`` are those that a worker has loaded already, by URL.

        Raises:
            TooManyImages, MediaSourceForbidden, InvalidDataUrl, MediaTooLarge, UnsupportedMediaType, MediaUndecodable,
            MediaError: of the first picture that is wrong, with its ``param``; or of the request as a whole.
        """
        limits.check_count(len(refs), self._config)
        loaded: list[MediaBytes] = []
        for ref in refs:
            if (picture := lifted.get(ref.url)) is not None:
                loaded.append(from_lift(picture, self._config, ref.param))
            else:
                loaded.append(load_ref(ref, self._config))
                await asyncio.sleep(0)  # other requests go on between two pictures
        limits.check_decoded_bytes((media.header for media in loaded), self._config)
        return tuple(loaded)

    def load_file(self, path: Path, param: str) -> MediaBytes:
        """A picture from the disk, for commands of this machine's user; never for a path out of a request. Blocks.

        Raises:
            MediaError: not a regular file, or not readable; names the file without its directory.
            MediaTooLarge, UnsupportedMediaType, MediaUndecodable: as ``load``.
        """
        try:
            data = _read_regular(path, self._config, param)
        except OSError:
            raise MediaError(f"{path.name} cannot be read.", code=Code.MEDIA_FILE_UNREADABLE, param=param) from None
        return inspect(data, self._config, param)


def from_lift(picture: Lift, config: MediaConfig, param: str) -> MediaBytes:
    """A picture that was lifted out of its body, under the same limits as any other."""
    if isinstance(picture, MediaError):
        raise type(picture)(picture.message, code=picture.code, param=param)
    limits.check_bytes(len(picture.data), config, param)
    limits.check_size(picture.header, config, param)
    return replace(picture, param=param)


def load_ref(ref: MediaRef, config: MediaConfig) -> MediaBytes:
    """One picture; a pure function of its arguments, so that it can run anywhere."""
    found = _SCHEME.match(ref.url)
    scheme = found[1].lower() if found else ""
    if scheme == "data":
        return inspect(data_url.parse(ref.url, ref.param, config.max_image_bytes), config, ref.param)
    if flag := _FLAGS.get(scheme):
        raise MediaSourceForbidden(
            f"Pictures from {scheme} addresses are not allowed; the operator can allow them with {flag}.",
            param=ref.param,
        )
    raise MediaError(
        "The address of a picture must be a data: URL with base64.", code=Code.INVALID_MEDIA_URL, param=ref.param
    )


def inspect(data: bytes, config: MediaConfig, param: str) -> MediaBytes:
    """Hash, header and limits of encoded bytes."""
    limits.check_bytes(len(data), config, param)
    header = read_header(data, param, config.formats)
    limits.check_size(header, config, param)
    return MediaBytes(data, hashlib.sha256(data).hexdigest(), header, param)


def _read_regular(path: Path, config: MediaConfig, param: str) -> bytes:
    """At most one byte more than allowed, so that a file that grows meanwhile is still refused."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise MediaError(f"{path.name} is not a regular file.", code=Code.MEDIA_FILE_UNREADABLE, param=param)
    limits.check_bytes(status.st_size, config, param)
    with path.open("rb") as file:
        return file.read(config.max_image_bytes + 1)
