"""Which addresses a picture may be fetched from: a table of our own, judged after unwrapping IPv6 embeddings.

``ipaddress.is_global`` is not used: its answer changes with Python's patch level, and in none of them it is a guard
(3.11.7 calls 224.0.0.1, ::127.0.0.1, 64:ff9b::a9fe:a9fe, 2002:7f00:1:: and the metadata services of two clouds global).
Pure; knows no name and no socket.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NOT_PUBLIC_V4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network; 0.0.0.0 reaches loopback
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # shared by carriers (RFC 6598), and by clouds for their own services
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # Azure's wire server, on a public address
            "169.254.0.0/16",  # link-local, and nearly every cloud's metadata
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocol assignments (RFC 6890), and Oracle's metadata
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # 6to4 relays (RFC 7526), deprecated
            "192.168.0.0/16",  # private
            "198.18.0.0/15",  # benchmarks (RFC 2544)
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
        ),
    )
)
_UNICAST_V6 = IPv6Network("2000::/3")
"""All that is handed out as global unicast; whatever lies outside is not public."""
_NOT_PUBLIC_V6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments (RFC 2928): Teredo, ORCHID, benchmarks
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4
            "3fff::/20",  # documentation (RFC 9637)
        ),
    )
)

_GUARDED: tuple[Network, ...] = (
    IPv4Network("0.0.0.0/8"),
    IPv4Network("100.100.100.200/32"),  # Alibaba
    IPv4Network("168.63.129.16/32"),  # Azure
    IPv4Network("169.254.0.0/16"),
    IPv4Network("169.254.169.0/24"),  # AWS, Google, Azure, DigitalOcean and others
    IPv4Network("169.254.170.0/24"),  # AWS containers and pods
    IPv4Network("192.0.0.192/32"),  # Oracle
    IPv6Network("::/128"),
    IPv6Network("fd00:ec2::/32"),  # AWS
    IPv6Network("fd20:ce::/32"),  # Google
    IPv6Network("fe80::/10"),
)
"""Opened only by a network that lies inside of one of these, so that a wide one never opens metadata by the way."""

_NAT64 = IPv6Network("64:ff9b::/96")
"""NAT64's well-known prefix (RFC 6052): public, where the address inside is."""
_EMBEDDING = (
    _NAT64,
    IPv6Network("::/96"),  # IPv4-compatible (RFC 4291), deprecated
    IPv6Network("::ffff:0:0/96"),  # IPv4-mapped
    IPv6Network("::ffff:0:0:0/96"),  # SIIT (RFC 2765)
    IPv6Network("64:ff9b:1::/48"),  # NAT64 of a network of one's own (RFC 8215)
)
"""The last 32 bits are an IPv4 address."""
_NO_EMBEDDING = (IPv6Address("::"), IPv6Address("::1"))
_SIX_TO_FOUR = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)
"""Bits 64 to 95 of an ISATAP address (RFC 5214), in any network."""


def is_allowed(address: Address, opened: Iterable[Network] = ()) -> bool:
    """Whether a connection may be made: ``address`` is public or lies in a network of ``opened``.

    Whatever IPv4 address it embeds, so that some mechanism on the way may take it out, has to be public in any case.
    """
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return False
        address = address.ipv4_mapped or address  # only another spelling
    return _is_allowed_itself(address, tuple(opened)) and all(map(_is_public, embedded(address)))


def embedded(address: Address) -> Iterator[IPv4Address]:
    """IPv4 addresses inside an IPv6 address, whichever mechanism may take them out."""
    if isinstance(address, IPv4Address):
        return
    value = int(address)
    if address not in _NO_EMBEDDING and any(address in network for network in _EMBEDDING):
        yield _last_32_bits(address)
    if address in _SIX_TO_FOUR:
        yield _v4(value >> 80)
    if address in _TEREDO:
        yield _v4(value >> 64)  # the server
        yield _v4(~value)  # the client, all bits inverted
    if value >> 32 & 0xFFFF_FFFF in _ISATAP:
        yield _last_32_bits(address)


def _last_32_bits(address: IPv6Address) -> IPv4Address:
    return _v4(int(address))


def _v4(value: int) -> IPv4Address:
    return IPv4Address(value & 0xFFFF_FFFF)


def _is_allowed_itself(address: Address, opened: tuple[Network, ...]) -> bool:
    containing = [network for network in opened if address in network]
    guards = [guard for guard in _GUARDED if address in guard]
    if guards:
        return any(all(_is_inside(network, guard) for guard in guards) for network in containing)
    return bool(containing) or _is_public(address)


def _is_inside(network: Network, guard: Network) -> bool:
    """Both hold the same address, so they are of one version."""
    return network.prefixlen >= guard.prefixlen


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_V4)
    return address in _NAT64 or (address in _UNICAST_V6 and not any(address in network for network in _NOT_PUBLIC_V6))
