"""From references to loaded pictures: bytes, hash, header, all limits. Nothing is decoded, and no model is known.

A picture comes with the request, from the network, or from a folder of this machine; the latter two only where the
operator allows them. What comes with the request is judged first, so that a wrong one costs nobody a connection.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import stat
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from opsin.core.conversation import MediaRef
from opsin.core.errors import Code, MediaError, MediaSourceForbidden, TooManyImages
from opsin.core.together import together
from opsin.media import data_url, limits
from opsin.media.blocking import BlockingCalls
from opsin.media.budget import Budget, ByteBudget
from opsin.media.config import LimitPerPrompt, MediaConfig
from opsin.media.dns import Lookup, system_lookup
from opsin.media.fetch import Fetched, Fetcher, Start
from opsin.media.header import read_header, read_start
from opsin.media.label import check_label, labelled
from opsin.media.local_files import LocalFiles
from opsin.media.policy import Target
from opsin.media.types import Glance, Lift, LiftedMedia, MediaBytes

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]{0,15}):")
_LARGE = 2**20
"""Bytes, or characters of a URL, from which on a picture is hashed beside the event loop (0.55 ms each)."""
_STARTS = (2**16, 2**20)
"""Bytes to ask for when only a header is wanted. The first hold it but for what a camera puts before the picture."""
_MAX_READS = 32
_MAX_HASHES = 4

NONE_LIFTED: LiftedMedia = MappingProxyType({})

Fetch = Callable[[Budget, str | None], Awaitable[Fetched]]
"""Fetches what is at a URL, unless it still is what had this ETag."""

Look = Callable[[bytes], Awaitable[MediaBytes]]
"""Judges what was fetched."""


class Fetches(Protocol):
    """Decides whether a URL has to be fetched again."""

    async def load(self, target: Target, fetch: Fetch, look: Look, budget: Budget) -> MediaBytes:
        """The picture at a URL, all of its bytes taken from the budget. Raises as ``fetch`` and ``look`` do."""
        ...


class _Always:
    """Fetches."""

    async def load(self, target: Target, fetch: Fetch, look: Look, budget: Budget) -> MediaBytes:
        """See Fetches."""
        data = (await fetch(budget, None)).data
        assert data is not None, "asked without an ETag"
        return await look(data)


ALWAYS = _Always()


@dataclass(frozen=True, slots=True)
class _File:
    """A picture named by a ``file:`` URL."""

    folder: LocalFiles
    url: str


_Named = Target | _File
"""A picture that is still to be read."""


class MediaLoader:
    """Loads the pictures of a request. Lives in one event loop, but for ``load_file``."""

    def __init__(self, config: MediaConfig, lookup: Lookup = system_lookup) -> None:
        """``lookup`` answers for the name service."""
        self._config = config
        self._fetcher = Fetcher(config.fetch, config.max_image_bytes, lookup)
        self._files = LocalFiles(config.allowed_local_media_path) if config.allowed_local_media_path else None
        self._reads = BlockingCalls("opsin-read", _MAX_READS)
        self._hashes = BlockingCalls("opsin-hash", _MAX_HASHES)  # of their own: a file system that hangs hangs no hash

    def under(self, limit: LimitPerPrompt) -> MediaLoader:
        """The same fetches, files and threads, for a model that takes another number of pictures."""
        other = copy(self)
        other._config = self._config.model_copy(update={"limit_mm_per_prompt": limit})
        return other

    async def load(
        self, refs: Sequence[MediaRef], lifted: LiftedMedia = NONE_LIFTED, fetches: Fetches = ALWAYS
    ) -> tuple[MediaBytes, ...]:
        """The pictures in the order of ``refs``; ``lifted`` are those that were loaded already, by URL.

        Raises:
            TooManyImages, MediaSourceForbidden, InvalidDataUrl, MediaTooLarge, UnsupportedMediaType, MediaUndecodable,
            MediaError: of a picture that is wrong, with its ``param``; or of the request as a whole.
            Overloaded: too many pictures are being fetched.
        """
        found = await self._all_found(refs, lifted)
        budget = ByteBudget(self._config.fetch.max_bytes_per_request)
        loaded = await together(self._loaded(ref, one, budget, fetches) for ref, one in zip(refs, found, strict=True))
        limits.check_decoded_bytes((media.header for media in loaded), self._config)
        return loaded

    async def glance(self, refs: Sequence[MediaRef], lifted: LiftedMedia = NONE_LIFTED) -> tuple[Glance, ...]:
        """What ``load`` would find, but of pictures on the network no more is fetched than tells their size.

        Raises:
            OpsinError: as ``load``, as far as the beginnings of the pictures and their servers' words about them tell.
        """
        found = await self._all_found(refs, lifted)
        budget = ByteBudget(self._config.fetch.max_bytes_per_request)
        seen = await together(self._seen(ref, one, budget) for ref, one in zip(refs, found, strict=True))
        limits.check_decoded_bytes((one.header for one in seen), self._config)
        return seen

    def load_file(self, path: Path, param: str) -> MediaBytes:
        """A picture from the disk, for commands of this machine's user; never for a path out of a request. Blocks.

        Raises:
            MediaError: not a regular file, or not readable; names the file without its directory.
            MediaTooLarge, UnsupportedMediaType, MediaUndecodable: as ``load``.
        """
        try:
            data = _read_regular(path, self._config, param)
        except OSError as error:
            why = f"{path.name} cannot be read: {error.strerror}."
            raise MediaError(why, code=Code.MEDIA_FILE_UNREADABLE, param=param) from None
        return inspect(data, self._config, param)

    async def _all_found(self, refs: Sequence[MediaRef], lifted: LiftedMedia) -> list[MediaBytes | _Named]:
        limits.check_count(len(refs), self._config)
        found: list[MediaBytes | _Named] = []
        for ref in refs:
            with _about(ref):
                found.append(await self._found(ref, lifted))
        self._check_num_remote(found)
        return found

    async def _found(self, ref: MediaRef, lifted: LiftedMedia) -> MediaBytes | _Named:
        """The picture itself if it came with the request, else where to read it. Touches neither network nor disk."""
        if (picture := lifted.get(ref.url)) is not None:
            return from_lift(picture, self._config, ref.param)
        match _scheme_of(ref.url):
            case "data":
                load = partial(load_data_url, ref, self._config)
                if len(ref.url) >= _LARGE:
                    return await self._hashes.run(load)
                await asyncio.sleep(0)  # other requests go on between two pictures
                return load()
            case "http" | "https":
                return self._fetcher.target(ref.url)
            case "file":
                return _File(self._folder(), ref.url)
            case _:
                raise MediaError(
                    "The address of a picture must be a data: URL with base64, or an https or file URL where the "
                    "operator allows those.",
                    code=Code.INVALID_MEDIA_URL,
                )

    def _check_num_remote(self, found: Sequence[MediaBytes | _Named]) -> None:
        remote, limit = sum(isinstance(one, Target) for one in found), self._config.fetch.max_remote_images
        if remote > limit:
            raise TooManyImages(
                f"The request names {remote} pictures by URL; the limit is {limit} (max_remote_images)."
            )

    async def _loaded(
        self, ref: MediaRef, found: MediaBytes | _Named, budget: ByteBudget, fetches: Fetches = ALWAYS
    ) -> MediaBytes:
        with _about(ref):
            match found:
                case MediaBytes():
                    return found
                case Target():
                    fetch, look = partial(self._fetcher.fetch_if_changed, found), partial(self._looked_at, ref.param)
                    return replace(await fetches.load(found, fetch, look, budget), param=ref.param)
                case _File(folder, url):
                    data = await self._reads.run(partial(folder.read, url, self._config.max_image_bytes))
                    budget.take(len(data))
                    return await self._looked_at(ref.param, data)

    async def _looked_at(self, param: str, data: bytes) -> MediaBytes:
        look = partial(inspect, data, self._config, param)
        return await self._hashes.run(look) if len(data) >= _LARGE else look()

    async def _seen(self, ref: MediaRef, found: MediaBytes | _Named, budget: ByteBudget) -> Glance:
        if isinstance(found, Target):
            with _about(ref):
                glance = await self._from_start(ref, found, budget)
            if glance is not None:
                return glance
        return _glance(await self._loaded(ref, found, budget))

    async def _from_start(self, ref: MediaRef, target: Target, budget: ByteBudget) -> Glance | None:
        """None where the whole has to be fetched."""
        for max_bytes in _STARTS:
            start = await self._fetcher.fetch_start(target, max_bytes)
            if start is None:
                return None
            look = partial(_look, start, self._config, ref.param)
            glance = await self._hashes.run(look) if len(start.data) >= _LARGE else look()
            if glance is not None:
                budget.take(max(len(start.data), start.total_bytes or 0))
                return glance
        return None

    def _folder(self) -> LocalFiles:
        if self._files is None:
            raise MediaSourceForbidden(
                "Pictures from file addresses are not allowed; the operator can allow them with "
                "--allowed-local-media-path."
            )
        return self._files


@contextmanager
def _about(ref: MediaRef) -> Generator[None]:
    """Says in an error which picture it is about."""
    try:
        yield
    except MediaError as error:
        error.param = error.param or ref.param
        raise


def from_lift(picture: Lift, config: MediaConfig, param: str) -> MediaBytes:
    """A picture that was lifted out of its body, under the same limits as any other."""
    if isinstance(picture, MediaError):
        raise type(picture)(picture.message, code=picture.code, param=param)
    limits.check_bytes(len(picture.data), config, param)
    limits.check_size(picture.header, config, param)
    return check_label(replace(picture, param=param), strict=config.strict_media_type)


def load_data_url(ref: MediaRef, config: MediaConfig) -> MediaBytes:
    """One picture out of its own URL; a pure function of its arguments, so that it can run anywhere."""
    media = inspect(data_url.parse(ref.url, ref.param, config.max_image_bytes), config, ref.param)
    return check_label(labelled(media, data_url.media_type(ref.url)), strict=config.strict_media_type)


def inspect(data: bytes, config: MediaConfig, param: str, *, sha256: str | None = None) -> MediaBytes:
    """Hash, header and limits of encoded bytes. ``sha256`` where it is known already."""
    limits.check_bytes(len(data), config, param)
    header = read_header(data, param, config.formats)
    limits.check_size(header, config, param)
    return MediaBytes(data, sha256 or hashlib.sha256(data).hexdigest(), header, param)


def _look(start: Start, config: MediaConfig, param: str) -> Glance | None:
    """Under the same limits; None where the size is not told yet."""
    if start.total_bytes == len(start.data):
        return _glance(inspect(start.data, config, param))
    found = read_start(start.data, param, config.formats)
    if found is None:
        return None
    limits.check_size(found.header, config, param)
    return Glance(found.header, found.is_settled, param)


def _glance(media: MediaBytes) -> Glance:
    return Glance(media.header, is_settled=True, param=media.param, mislabelled=media.mislabelled)


def _scheme_of(url: str) -> str:
    found = _SCHEME.match(url)
    return found[1].lower() if found else ""


def _read_regular(path: Path, config: MediaConfig, param: str) -> bytes:
    """At most one byte more than allowed, so that a file that grows meanwhile is still refused."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise MediaError(f"{path.name} is not a regular file.", code=Code.MEDIA_FILE_UNREADABLE, param=param)
    limits.check_bytes(status.st_size, config, param)
    with path.open("rb") as file:
        return file.read(config.max_image_bytes + 1)
