"""Host names and addresses in their one canonical form, and the patterns that an operator allows. Resolves nothing.

Every part of the fetch speaks of a host in this form only, so that no two parsers can disagree about it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address

import idna

from opsin.media.addresses import Address

_MAX_NAME = 253
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_\-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""A last label like this makes the whole host an IPv4 address for every resolver (WHATWG's "ends in a number")."""

_NEVER_PUBLIC = ("localhost", "localdomain", "local", "internal", "intranet", "lan", "home", "corp", "home.arpa")
"""Names and whatever ends in them belong to a network of somebody's own; the public DNS holds none of them."""


@dataclass(frozen=True, slots=True)
class Host:
    """A name in lower-case ASCII without a trailing dot, or an address in its shortest form, without brackets."""

    name: str
    address: Address | None = None

    @property
    def in_url(self) -> str:
        """As it stands in a URL."""
        return f"[{self.name}]" if isinstance(self.address, IPv6Address) else self.name

    @property
    def is_public_name(self) -> bool:
        """False for names that only a private network can know."""
        return "." in self.name and not any(f".{self.name}".endswith(f".{one}") for one in _NEVER_PUBLIC)


@dataclass(frozen=True, slots=True)
class HostPattern:
    """A host, or with ``subdomains`` everything below it and not itself."""

    host: Host
    subdomains: bool

    def matches(self, host: Host) -> bool:
        """Label by label; addresses match only themselves."""
        if self.subdomains:
            return host.name.endswith(f".{self.host.name}")
        return host.name == self.host.name


def parse_host(text: str) -> Host:
    """The host of a URL, IPv6 in its brackets.

    Raises:
        ValueError: it is no host or not in canonical form; the message says why and does not quote it.
    """
    if text.startswith("["):
        return _ipv6(text)
    name = text.removesuffix(".")
    name = name.lower() if name.isascii() else _to_ascii(name)
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return _ipv4(name)
    if len(name) > _MAX_NAME or not all(map(_LABEL.fullmatch, labels)):
        raise ValueError("its host is no host name")
    return Host(name)


def parse_pattern(text: str) -> HostPattern:
    """``images.example.com`` or ``*.example.com``.

    Raises:
        ValueError: anything else; the message says how to write it.
    """
    if "://" in text or "/" in text:
        raise ValueError("should be a host alone, without scheme or path")
    subdomains = text.startswith("*.")
    try:
        host = parse_host(text.removeprefix("*."))
    except ValueError:
        raise ValueError("should be a host such as images.example.com, or *.example.com") from None
    if subdomains and (host.address or "." not in host.name):
        raise ValueError("a wildcard should stand before at least two labels: *.example.com")
    return HostPattern(host, subdomains)


def _ipv6(text: str) -> Host:
    try:
        address = IPv6Address(text[1:-1] if text.endswith("]") else "")
    except AddressValueError:
        raise ValueError("its host is no IPv6 address") from None
    if address.scope_id is not None:
        raise ValueError("its host has a zone")
    return Host(str(address), address)


def _ipv4(name: str) -> Host:
    """Four decimal numbers without leading zeros, and no other form that resolvers take."""
    try:
        return Host(name, IPv4Address(name))
    except AddressValueError:
        raise ValueError("its host is a number that is no plain IPv4 address") from None


def _to_ascii(name: str) -> str:
    """An internationalised name, if it is the one form to which its ASCII form leads back."""
    try:
        encoded = idna.encode(name).decode()
        if idna.decode(encoded) == name:
            return encoded
    except idna.IDNAError:
        pass
    raise ValueError("its host is not in canonical form")
