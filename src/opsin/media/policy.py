"""One parse of a picture's URL, and whether it may be fetched. Everything after works with the parsed target alone.

    scheme://host[:port][/path][?query][#fragment]

- ``https``, and ``http`` where it is switched on; no user name or password; no backslash, white space or control
  character anywhere; at most ``MAX_URL_BYTES``. The fragment and an empty query are dropped, whatever is not ASCII in
  path and query is percent-encoded as UTF-8, and the rest goes out as it came.
- The host is in canonical form or refused, see :mod:`opsin.media.hosts`. A port is refused unless it is listed.

Pure: resolves and dials nothing. Addresses behind a name are judged where they are dialled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast
from urllib.parse import quote, urljoin

from opsin.core.errors import Code, MediaError, MediaSourceForbidden
from opsin.media.addresses import Address, is_allowed
from opsin.media.fetch_config import FetchConfig
from opsin.media.hosts import Host, parse_host, parse_pattern

MAX_URL_BYTES = 8192

_URL = re.compile(r"(https?)://([^/?#]*)([^?#]*)((?:\?[^#]+)?)\??(?:#.*)?", re.IGNORECASE | re.ASCII)
_AUTHORITY = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::([1-9][0-9]{0,4}))?")
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f-\x9f\\\ud800-\udfff]|\s")
_AS_IT_CAME = "%/:?#[]@!$&'()*+,;=-._~"
_DEFAULT_PORTS = {"http": 80, "https": 443}

Scheme = Literal["http", "https"]


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that may be fetched. ``path`` holds the query too, as it is sent."""

    scheme: Scheme
    host: Host
    port: int
    path: str

    @property
    def url(self) -> str:
        """The URL in canonical form."""
        port = "" if self.port == _DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self.host.in_url}{port}{self.path}"


class FetchPolicy:
    """What may be fetched under one configuration."""

    def __init__(self, config: FetchConfig) -> None:
        self._config = config
        self._patterns = tuple(map(parse_pattern, config.allowed_media_domains))

    def target(self, url: str) -> Target:
        """What to fetch for an ``http`` or ``https`` URL.

        Raises:
            MediaSourceForbidden: the operator does not allow it; names the flag that would.
            MediaError: the URL is outside the grammar (``invalid_media_url``). Neither quotes the URL.
        """
        if not self._config.enabled:
            raise _forbidden("Pictures from http and https addresses are not allowed", "--allowed-media-domains")
        target, port_is_stated = _parse(url)
        if target.scheme == "http" and not self._config.allow_plain_http:
            raise _forbidden("Pictures over plain http are not allowed", "--allow-plain-http")
        if port_is_stated and target.port not in self._config.allowed_ports:
            raise _forbidden(f"Pictures from port {target.port} are not allowed", "--allowed-media-ports")
        self._check_host(target.host)
        return target

    def redirect(self, source: Target, location: str) -> Target:
        """Where an answer of ``source`` points to, judged like a URL of a request.

        Raises:
            MediaSourceForbidden, MediaError: as ``target``; or it leads from https to http.
        """
        target = self.target(_joined(source.url, location))
        if source.scheme == "https" and target.scheme == "http":
            raise MediaError("The picture's server redirects from https to http.", code=Code.MEDIA_URL_REDIRECT)
        return target

    def may_dial(self, address: Address) -> bool:
        """Whether a connection to this address is allowed."""
        return is_allowed(address, self._config.allowed_private_networks)

    def _check_host(self, host: Host) -> None:
        if host.address is not None and not self._config.allow_ip_literals:
            raise _forbidden("URLs with an address in the place of a host are not allowed", "--allow-ip-literals")
        listed = any(pattern.matches(host) for pattern in self._patterns)
        if not listed and not (self._config.allow_public_https and (host.address or host.is_public_name)):
            raise _forbidden("Pictures from this host are not allowed", "--allowed-media-domains")


def _parse(url: str) -> tuple[Target, bool]:
    """The target, and whether the URL states its port."""
    if len(url.encode("utf-8", "replace")) > MAX_URL_BYTES:
        raise _invalid(f"it is longer than {MAX_URL_BYTES} bytes")
    if _FORBIDDEN.search(url):
        raise _invalid("it holds a backslash, white space or a control character")
    found = _URL.fullmatch(url)
    if found is None:
        raise _invalid("it is not of the form https://host/path")
    scheme, authority, path, query = found.groups()
    if "@" in authority:
        raise _invalid("it holds a user name or a password")
    place = _AUTHORITY.fullmatch(authority)
    if place is None or int(place[2] or 0) > 65535:
        raise _invalid("its host or port is malformed")
    try:
        host = parse_host(place[1])
    except ValueError as error:
        raise _invalid(str(error)) from None
    scheme = cast("Scheme", scheme.lower())
    port = int(place[2]) if place[2] else _DEFAULT_PORTS[scheme]
    return Target(scheme, host, port, quote((path or "/") + query, safe=_AS_IT_CAME)), place[2] is not None


def _joined(base: str, location: str) -> str:
    """Looked at before it is joined, because urllib silently takes tabs and line breaks out."""
    try:
        if not _FORBIDDEN.search(location):
            return urljoin(base, location)
    except ValueError:
        pass
    raise MediaError("The picture's server redirects to no valid URL.", code=Code.MEDIA_URL_REDIRECT)


def _invalid(why: str) -> MediaError:
    return MediaError(f"The URL of the picture is not accepted: {why}.", code=Code.INVALID_MEDIA_URL)


def _forbidden(what: str, flag: str) -> MediaSourceForbidden:
    return MediaSourceForbidden(f"{what}; the operator can allow them with {flag}.")
