"""The one way to a picture on the network, for every route: resolve once, judge, dial what was judged, count, stop.

A fetch is at most ``max_redirects`` + 1 hops. Each is a URL that the policy has parsed, addresses that were all judged,
one connection to one of them, and an answer of which nothing is trusted: neither its length, nor its type, nor its
pace. Nothing is kept between fetches, and nothing of the environment is read. Knows no request and no picture.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import logging
import re
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from opsin import __version__
from opsin.core.errors import Code, MediaError, MediaSourceForbidden, MediaTooLarge, Overloaded
from opsin.media.addresses import Address
from opsin.media.budget import Budget
from opsin.media.dial import Dial
from opsin.media.dns import Lookup, NoAddress, RefusedAddress, Resolver, system_lookup
from opsin.media.fetch_config import FetchConfig
from opsin.media.fetch_deadline import FetchDeadline, Phase
from opsin.media.hosts import parse_host
from opsin.media.one_answer import OneAnswer
from opsin.media.policy import FetchPolicy, Target
from opsin.telemetry.logs import fields

logger = logging.getLogger(__name__)

T = TypeVar("T")
Read = Callable[[aiohttp.ClientResponse, FetchDeadline], Awaitable[T]]
"""Takes what it wants of an answer that is no redirect."""

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PLAIN_CODINGS = {"Content-Encoding": frozenset({"", "identity"}), "Transfer-Encoding": frozenset({"chunked"})}
_PARTIAL, _NOT_MODIFIED, _NO_SUCH_RANGE = 206, 304, 416
_ETAG = re.compile(r'(W/)?"[\x21\x23-\x7e]{0,256}"', re.ASCII)
_MAX_AGE = re.compile(r"(?:^|[\s,])max-age=([0-9]{1,9})(?![0-9])", re.ASCII)
_FROM_THE_START = re.compile(r"bytes 0-[0-9]{1,18}/([0-9]{1,18}|\*)", re.ASCII)
_MAX_LINE_BYTES = 8192
_MAX_HEADERS = 64
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_HEADERS = {
    "Accept": "image/*, */*;q=0.1",
    "Accept-Encoding": "identity",
    "User-Agent": f"opsin/{__version__}",
}
FAILURES = (aiohttp.ClientError, HttpProcessingError, OSError)
"""All that aiohttp raises about a connection or an answer."""


@dataclass(frozen=True, slots=True)
class Start:
    """The first bytes of a file, and how many the whole has; None where its server does not say."""

    data: bytes
    total_bytes: int | None


@dataclass(frozen=True, slots=True)
class Fetched:
    """A picture, and what its server says about keeping it. ``data`` None: it is as it was."""

    data: bytes | None
    etag: str | None = None
    max_age_s: float = 0.0
    may_be_kept: bool = True


class Fetcher:
    """Fetches pictures under one policy. Lives in one event loop; holds nothing that has to be closed."""

    def __init__(self, config: FetchConfig, max_image_bytes: int, lookup: Lookup = system_lookup) -> None:
        """``lookup`` answers for the name service. Raises OSError when ``ca_file`` cannot be read."""
        self._config = config
        self._max_image_bytes = max_image_bytes
        self._policy = FetchPolicy(config)
        self._resolver = Resolver(lookup)
        self._places = asyncio.Semaphore(config.max_fetches)
        self._trust = trust(config.ca_file) if config.enabled else None
        self._proxy = URL(config.proxy.get_secret_value()) if config.proxy else None
        self._proxy_host = parse_host(self._proxy.host_subcomponent or "") if self._proxy else None

    def target(self, url: str) -> Target:
        """What to fetch for a URL of a request; nothing is resolved or dialled. Raises as ``FetchPolicy.target``."""
        try:
            return self._policy.target(url)
        except MediaError as error:
            _log(url, None, error)
            raise

    async def fetch(self, target: Target, budget: Budget) -> bytes:
        """The bytes at a URL. Cancelling it closes the connection at once.

        Raises:
            MediaSourceForbidden: its host has no address that may be dialled, or a redirect leads where it must not.
            MediaTooLarge: it sent more than ``max_image_bytes``, or more than ``budget`` has left.
            MediaError: unreachable, too slow, no status 200, one redirect too many, or compressed.
            Overloaded: no place became free for it.
        """
        return await self._fetch(target, partial(self._body, budget))

    async def fetch_if_changed(self, target: Target, budget: Budget, etag: str | None) -> Fetched:
        """The same, unless its server says that it is still what had this ETag. Raises as ``fetch``."""
        headers = {"If-None-Match": etag} if etag else _NO_HEADERS
        return await self._fetch(target, partial(self._changed, budget), headers)

    async def fetch_start(self, target: Target, max_bytes: int) -> Start | None:
        """The first ``max_bytes`` at a URL, and no more, whatever is sent; None where its server has no ranges.

        Raises:
            MediaTooLarge: the whole has more than ``max_image_bytes``, as its server says.
            MediaSourceForbidden, MediaError, Overloaded: as ``fetch``.
        """
        return await self._fetch(target, partial(self._start, max_bytes), {"Range": f"bytes=0-{max_bytes - 1}"})

    @asynccontextmanager
    async def _place(self) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(self._config.total_timeout_s):
                await self._places.acquire()
        except TimeoutError:
            busy = f"all {self._config.max_fetches} fetches of pictures are in use (max_fetches); try again"
            raise Overloaded(busy, retry_after_s=1) from None
        try:
            yield
        finally:
            self._places.release()

    async def _fetch(self, target: Target, read: Read[T], headers: Mapping[str, str] = _NO_HEADERS) -> T:
        try:
            async with self._place():
                return await self._within_time(target, read, headers)
        except MediaError as error:
            _log(target.url, target, error)
            raise

    async def _within_time(self, target: Target, read: Read[T], headers: Mapping[str, str]) -> T:
        try:
            async with FetchDeadline(self._config) as deadline:
                return await self._follow(target, read, headers, deadline)
        except NoAddress as reason:
            raise MediaSourceForbidden(
                "The host of the picture has no address from which pictures may be fetched."
            ) from reason
        except FAILURES as failure:
            raise MediaError(
                "The server of the picture cannot be reached, or what it sends is no whole HTTP answer.",
                code=Code.MEDIA_URL_UNREACHABLE,
            ) from failure

    async def _follow(self, target: Target, read: Read[T], headers: Mapping[str, str], deadline: FetchDeadline) -> T:
        for left in range(self._config.max_redirects, -1, -1):
            async with self._answer(target, headers, deadline) as response:
                if response.status not in _REDIRECTS:
                    return await read(response, deadline)
                location = response.headers.get("Location", "")
            if left:
                target = self._policy.redirect(target, location)
        raise MediaError(
            f"The server of the picture redirects; at most {self._config.max_redirects} redirects are followed "
            "(--max-media-redirects).",
            code=Code.MEDIA_URL_REDIRECT,
        )

    @asynccontextmanager
    async def _answer(
        self, target: Target, headers: Mapping[str, str], deadline: FetchDeadline
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """The headers of one answer; leaving closes its connection, whatever was not read."""
        deadline.enter(Phase.RESOLVING)
        dial = Dial(await self._addresses(target))
        deadline.enter(Phase.CONNECTING)
        url = URL(target.url, encoded=True)  # encoded: what was parsed goes out, and no second parser touches it
        async with (
            self._session(dial, deadline) as session,
            session.get(url, headers=headers, allow_redirects=False, proxy=self._proxy) as response,
        ):
            yield response

    async def _addresses(self, target: Target) -> tuple[Address, ...]:
        """Whom to dial: the target, or the proxy that dials it."""
        if self._proxy_host is None:
            return await self._resolver.addresses(target.host, self._policy.may_dial)
        if target.host.address and not self._policy.may_dial(target.host.address):
            raise RefusedAddress
        return await self._resolver.addresses(self._proxy_host, _any_address)

    def _session(self, dial: Dial, deadline: FetchDeadline) -> aiohttp.ClientSession:
        """For one hop: no connection, cookie or credential outlives it (0.3 ms more than a shared one)."""

        async def connected(*_: object) -> None:
            dial.check_peer()
            deadline.enter(Phase.WAITING)

        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(connected)
        assert self._trust is not None, "no target is made while fetching is off"
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                resolver=dial, socket_factory=dial.socket, use_dns_cache=False, force_close=True, ssl=self._trust
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            headers=_HEADERS,
            response_class=OneAnswer,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            max_line_size=_MAX_LINE_BYTES,
            max_field_size=_MAX_LINE_BYTES,
            max_headers=_MAX_HEADERS,
            trace_configs=[trace],
        )

    async def _body(self, budget: Budget, response: aiohttp.ClientResponse, deadline: FetchDeadline) -> bytes:
        """All bytes, counted as they arrive; ``Content-Length`` can only shorten the wait for a refusal."""
        _check_answer(response)
        self._check_length(response.content_length)
        data = await _up_to(self._max_image_bytes + 1, response, deadline, budget)
        self._check_length(len(data))
        return data

    async def _changed(self, budget: Budget, response: aiohttp.ClientResponse, deadline: FetchDeadline) -> Fetched:
        is_same = response.status == _NOT_MODIFIED and "If-None-Match" in response.request_info.headers
        data = None if is_same else await self._body(budget, response, deadline)
        etag = response.headers.get("ETag", "")
        control = response.headers.get("Cache-Control", "").lower()
        return Fetched(
            data,
            etag=etag if _ETAG.fullmatch(etag) else None,
            max_age_s=_max_age_s(control, response.headers.get("Age", "")),
            may_be_kept="no-store" not in control,
        )

    async def _start(self, max_bytes: int, response: aiohttp.ClientResponse, deadline: FetchDeadline) -> Start | None:
        """Of a server that takes no notice of the range it is the beginning of the whole."""
        if response.status == _NO_SUCH_RANGE:
            return None
        total_bytes = response.content_length
        if response.status == _PARTIAL:
            found = _FROM_THE_START.fullmatch(response.headers.get("Content-Range", ""))
            if found is None:
                return None
            total_bytes = None if found[1] == "*" else int(found[1])
        _check_answer(response, _PARTIAL)
        self._check_length(total_bytes)
        data = await _up_to(max_bytes, response, deadline)
        is_whole = response.status != _PARTIAL and len(data) < max_bytes
        return Start(data, len(data) if is_whole else total_bytes)

    def _check_length(self, num_bytes: int | None) -> None:
        if (num_bytes or 0) > self._max_image_bytes:
            raise MediaTooLarge(f"The picture has more than {self._max_image_bytes} bytes (max_image_bytes).")


async def _up_to(
    max_bytes: int, response: aiohttp.ClientResponse, deadline: FetchDeadline, budget: Budget | None = None
) -> bytes:
    """The body, counted as it arrives."""
    deadline.enter(Phase.READING)
    deadline.received(0)
    body = io.BytesIO()
    async for piece in response.content.iter_any():
        body.write(piece[: max_bytes - body.tell()])
        if body.tell() == max_bytes:
            break
        if budget is not None:
            budget.take(len(piece))
        deadline.received(body.tell())
    return body.getvalue()


@cache
def trust(ca_file: Path | None) -> ssl.SSLContext:
    """Whose certificates are believed besides the system's. Kept, as reading those takes 40 ms.

    Raises:
        OSError: the file cannot be read or holds no certificates (ssl.SSLError).
    """
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


def _max_age_s(control: str, age: str) -> float:
    """How long an answer is fresh from now on; 0 where its server does not say, or wants to be asked."""
    found = _MAX_AGE.search(control)
    if found is None or "no-cache" in control:
        return 0.0
    return max(0.0, float(found[1]) - (float(age) if age.isascii() and age.isdigit() and len(age) < 10 else 0.0))


def _any_address(_: Address) -> bool:
    return True


def _check_answer(response: aiohttp.ClientResponse, *others: int) -> None:
    """Raises MediaError unless the answer is a body, as it is, of status 200 or one of ``others``."""
    if response.status not in (200, *others):
        raise MediaError(
            f"The server of the picture answers with status {response.status}.", code=Code.MEDIA_URL_STATUS
        )
    for header, plain in _PLAIN_CODINGS.items():
        if any(coding.strip().lower() not in plain for coding in response.headers.getall(header, ())):
            raise MediaError(
                "The server of the picture sends it compressed, although asked not to.", code=Code.MEDIA_URL_ENCODING
            )


def _log(url: str, target: Target | None, error: MediaError) -> None:
    """The URL as a short hash; its host only when it is canonical, so that no line holds what a client made up."""
    logger.info(
        "%s",
        fields(
            event="picture_not_fetched",
            host=target.host.name if target else None,
            url=hashlib.sha256(url.encode("utf-8", "replace")).hexdigest()[:12],
            code=error.code,
            reason=_reason(error.__cause__),
            allowed_by=error.__cause__.flag if isinstance(error.__cause__, RefusedAddress) else None,
        ),
    )


def _reason(cause: BaseException | None) -> str | None:
    """More than the client is told, and no text of a library."""
    return str(cause) if isinstance(cause, NoAddress) else type(cause).__name__ if cause else None
