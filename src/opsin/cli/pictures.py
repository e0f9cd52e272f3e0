"""Pictures as words of a command line: files of this machine's user, or URLs that the settings allow."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from opsin.core.conversation import Detail, MediaRef
from opsin.core.errors import MediaError, MediaSourceForbidden
from opsin.media import data_url, limits
from opsin.media.config import MediaConfig
from opsin.media.dns import NoAddress, RefusedAddress
from opsin.media.loader import MediaLoader
from opsin.media.types import Glance, ImageFormat, ImageHeader, MediaBytes
from opsin.vision.size import Size

_URL = re.compile(r"(https?|file|data):", re.IGNORECASE | re.ASCII)


def load_pictures(words: Sequence[str], config: MediaConfig) -> list[MediaBytes]:
    """All of them, in order.

    Raises:
        MediaError: a file that cannot be used, or a URL that may not be fetched or cannot be.
    """
    return asyncio.run(_load(words, MediaLoader(config)))


def look_at(words: Sequence[str], config: MediaConfig) -> list[Glance]:
    """What their headers say; of a picture on the network little more is fetched. Raises as ``load_pictures``."""
    return asyncio.run(_look(words, MediaLoader(config)))


def imagined(size: Size, param: str) -> Glance:
    """A picture that is known by its upright size alone."""
    return Glance(ImageHeader(ImageFormat.PNG, size, orientation=1, frames=1), is_settled=True, param=param)


def check_together(glances: Sequence[Glance], config: MediaConfig) -> None:
    """What a server would refuse before it counts. Raises MediaError of a picture, or of all as one request."""
    limits.check_count(len(glances), config)
    for glance in glances:
        limits.check_size(glance.header, config, glance.param)
    limits.check_decoded_bytes((glance.header for glance in glances), config)


def as_sent(word: str, config: MediaConfig) -> str:
    """A URL as it is, for a server to judge; a file inside a ``data:`` URL. Raises MediaError."""
    if _URL.match(word):
        return word
    picture = _file(word, MediaLoader(config))
    return data_url.write(picture.header.format.mime, picture.data)


async def _load(words: Sequence[str], loader: MediaLoader) -> list[MediaBytes]:
    loaded: list[MediaBytes] = []
    for word in words:
        if _URL.match(word):
            with _told_to_the_operator():
                loaded += await loader.load([MediaRef(word, Detail.AUTO, word)])
        else:
            loaded.append(_file(word, loader))
    return loaded


async def _look(words: Sequence[str], loader: MediaLoader) -> list[Glance]:
    seen: list[Glance] = []
    for word in words:
        if _URL.match(word):
            with _told_to_the_operator():
                seen += await loader.glance([MediaRef(word, Detail.AUTO, word)])
        else:
            picture = _file(word, loader)
            seen.append(Glance(picture.header, is_settled=True, param=word))
    return seen


@contextmanager
def _told_to_the_operator() -> Generator[None]:
    """Whoever types the URL chooses the settings too, and may know more of it than a client."""
    try:
        yield
    except MediaSourceForbidden as error:
        match error.__cause__:
            case RefusedAddress(flag=flag):
                more = f" It is not public; {flag} opens its network."
            case NoAddress():
                more = " Its name does not resolve."
            case _:
                raise
        raise MediaSourceForbidden(error.message + more, code=error.code, param=error.param) from error.__cause__


def _file(word: str, loader: MediaLoader) -> MediaBytes:
    """An error names the file as it was typed."""
    try:
        return loader.load_file(Path(word), word)
    except MediaError as error:
        told = error.message.removeprefix(f"{Path(word).name} ")
        raise type(error)(f"{word}: {told}", code=error.code, param=word) from None
