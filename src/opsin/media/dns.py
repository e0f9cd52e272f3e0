"""From a host to the addresses that may be dialled. A name is resolved once, and every answer is judged."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import ip_address
from typing import ClassVar

from opsin.media.addresses import Address
from opsin.media.blocking import BlockingCalls
from opsin.media.hosts import Host

Lookup = Callable[[str], Sequence[str]]
"""Addresses of a name, in the order of preference. Blocks. Raises OSError."""

_MAX_LOOKUPS = 64
"""Threads; a lookup that nobody waits for any more still has one until the system gives it up (5 to 30 s)."""


class NoAddress(Exception):
    """A host without an address, or with one that may not be dialled; says which in one word, for the log alone.

    A client is told neither, so that nobody learns which names a private network holds.
    """


class RefusedAddress(NoAddress):
    """One that may not be dialled; the operator is told what would allow it."""

    flag: ClassVar[str] = "--allowed-private-networks"

    def __init__(self) -> None:
        super().__init__("refused_address")


class Resolver:
    """Resolves names with ``lookup``. Lives in one event loop."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._calls = BlockingCalls("opsin-dns", _MAX_LOOKUPS)

    async def addresses(self, host: Host, may_dial: Callable[[Address], bool]) -> tuple[Address, ...]:
        """All addresses of a host, at least one; a single one that may not be dialled refuses them all.

        Raises:
            NoAddress: there is none.
            RefusedAddress: one may not be dialled.
        """
        found = (host.address,) if host.address else await self._resolved(host)
        if not found:
            raise NoAddress("unresolved")
        if not all(map(may_dial, found)):
            raise RefusedAddress
        return found

    async def _resolved(self, host: Host) -> tuple[Address, ...]:
        try:
            answers = await self._calls.run(partial(self._lookup, host.name))
            return tuple(map(ip_address, answers))
        except (OSError, ValueError):  # UnicodeError is a ValueError
            raise NoAddress("unresolved") from None


def system_lookup(name: str) -> list[str]:
    """As the operating system resolves names: hosts file, search domains and all."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [str(sockaddr[0]) for *_, sockaddr in found]
