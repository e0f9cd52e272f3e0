"""Judged addresses as an HTTP client dials them, and no others. Knows no policy and no name service."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from opsin.media.addresses import Address

AddrInfo = tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[Any, ...]]
"""As ``getaddrinfo`` gives it."""


class WrongAddress(OSError):
    """Something asked for a connection to an address that nobody judged."""


class Dial(AbstractResolver):
    """One connection's resolver and maker of sockets.

    As resolver it gives the judged addresses for any name. As ``socket_factory`` it sees every address that is really
    dialled, also those for which the client asks no resolver, and makes sockets for the judged ones alone.
    """

    def __init__(self, addresses: Iterable[Address]) -> None:
        self._addresses = tuple(addresses)
        self._sockets: list[socket.socket] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET6 if address.version == 6 else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        """There is nothing to close: the connection owns its socket."""

    def socket(self, wanted: AddrInfo) -> socket.socket:
        """A socket towards a judged address. Raises WrongAddress for any other."""
        family, kind, protocol, _, address = wanted
        if not self._is_judged(address):
            raise WrongAddress
        made = socket.socket(family, kind, protocol)
        self._sockets.append(made)
        return made

    def check_peer(self) -> None:
        """After connecting, before anything is sent: whether the other end is a judged one. Raises WrongAddress."""
        for made in self._sockets:
            if made.fileno() >= 0 and not self._is_judged(made.getpeername()):
                made.shutdown(socket.SHUT_RDWR)
                raise WrongAddress

    def _is_judged(self, address: tuple[Any, ...]) -> bool:
        """Compared as numbers: the kernel writes IPv4-mapped addresses otherwise than Python."""
        return ip_address(address[0]) in self._addresses
