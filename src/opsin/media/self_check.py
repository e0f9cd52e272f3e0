"""The vectors of :mod:`opsin.media.vectors`, judged by this server's own code under one configuration.

URLs are judged as if every plain switch of the fetch were on, since what is refused then is refused whatever the
switches say; networks, hosts and ports are those that the operator opened. Nothing is resolved, dialled or decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from opsin.core.errors import Code, MediaError
from opsin.media import data_url
from opsin.media.config import MediaConfig
from opsin.media.fetch_config import FetchConfig
from opsin.media.loader import inspect
from opsin.media.policy import FetchPolicy
from opsin.media.vectors import BYTES, DATA_URLS, URLS, BytesVector, DataUrlVector, UrlVector

ALLOWED = "allowed"
READ = "read"
_PARAM = "doctor"
_SWITCHES_ON = {"allow_public_https": True, "allow_plain_http": True, "allow_ip_literals": True}


@dataclass(frozen=True, slots=True)
class Check:
    """One vector, what has to come of it and what came of it. ``is_run`` is false where ``got`` says why it was not."""

    vector: str
    expected: str
    got: str
    is_run: bool = True

    @property
    def passed(self) -> bool:
        """True also for what was not run."""
        return not self.is_run or self.got == self.expected


def check_intake(config: MediaConfig) -> Iterator[Check]:
    """All vectors, of URLs, ``data:`` URLs and headers."""
    policy, shipped = _with_switches_on(config.fetch), _with_switches_on(FetchConfig())
    yield from (_of_url(vector, policy, shipped) for vector in URLS)
    yield from (_of_data_url(vector, config) for vector in DATA_URLS)
    yield from (_of_bytes(vector, config) for vector in BYTES)


def outcome(of: Callable[[], object], otherwise: str) -> str:
    """The code with which it is refused, or ``otherwise``."""
    try:
        of()
    except MediaError as error:
        return error.code
    return otherwise


def _of_url(vector: UrlVector, policy: FetchPolicy, shipped: FetchPolicy) -> Check:
    got = _judged(vector.url, policy)
    if got == ALLOWED and vector.setting and _judged(vector.url, shipped) != ALLOWED:
        got = f"allowed by your settings: {vector.setting}"
    return Check(f"url {vector.url!r}", vector.expected, got)


def _judged(url: str, policy: FetchPolicy) -> str:
    """As far as a URL is judged before its host is resolved; an address needs no resolving."""
    try:
        host = policy.target(url).host
    except MediaError as error:
        return error.code
    return ALLOWED if host.address is None or policy.may_dial(host.address) else Code.MEDIA_URL_BLOCKED


def _with_switches_on(config: FetchConfig) -> FetchPolicy:
    return FetchPolicy(config.model_copy(update=_SWITCHES_ON))


def _of_data_url(vector: DataUrlVector, config: MediaConfig) -> Check:
    got = outcome(lambda: data_url.parse(vector.url, _PARAM, config.max_image_bytes), READ)
    return Check(f"data url, {vector.name}", vector.expected or READ, got)


def _of_bytes(vector: BytesVector, config: MediaConfig) -> Check:
    is_refused_anyway = vector.format is not None and vector.format not in config.formats
    expected = Code.UNSUPPORTED_IMAGE_FORMAT if is_refused_anyway else vector.expected
    return Check(f"bytes, {vector.name}", expected, outcome(lambda: inspect(vector.data, config, _PARAM), READ))
