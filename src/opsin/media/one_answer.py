"""What of an HTTP answer a client library leaves without a bound: the interim ones (1xx) that may come before it."""

from __future__ import annotations

from typing import Any

import aiohttp

MAX_INTERIM_ANSWERS = 8
"""Real servers send none to a client that did not ask, or one (103 Early Hints)."""


class TooManyInterimAnswers(aiohttp.ClientError):
    """More than MAX_INTERIM_ANSWERS."""


class OneAnswer(aiohttp.ClientResponse):
    """An answer that comes soon. aiohttp skips any number of interim ones, as fast as it can parse, before it looks at
    a clock again: a flood of them would take the event loop until the deadline, and on a busy machine beyond."""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:  # aiohttp does not export the type
        """As aiohttp's. Raises TooManyInterimAnswers too."""
        protocol = connection.protocol
        read, left = protocol.read, MAX_INTERIM_ANSWERS + 1

        async def counted() -> object:
            nonlocal left
            if not left:
                raise TooManyInterimAnswers
            left -= 1
            return await read()

        protocol.read = counted  # one answer per connection, so nobody else reads from it
        return await super().start(connection)
