"""Bytes that the pictures of one request may hold together, beyond those in its body."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

from opsin.core.errors import MediaTooLarge


class Budget(Protocol):
    """Counts bytes while they arrive."""

    def take(self, num_bytes: int) -> None:
        """So many more."""
        ...


class ByteBudget:
    """Counts up to ``limit`` over all pictures of a request, while their bytes arrive."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0

    def take(self, num_bytes: int) -> None:
        """Raises MediaTooLarge when the pictures hold more than allowed."""
        self._taken += num_bytes
        if self._taken > self._limit:
            raise MediaTooLarge(
                f"The pictures that the request names hold more than {self._limit} bytes together "
                "(max_bytes_per_request)."
            )


class SharedBudget:
    """Of bytes for which several requests wait: each pays for all of them, those before it came included."""

    def __init__(self) -> None:
        self._num_bytes = 0
        self._payers: list[Payer] = []

    def is_last(self, payer: Payer) -> bool:
        """Whether nobody else waits."""
        return self._payers == [payer]

    def take(self, num_bytes: int) -> None:
        """See Budget; who cannot pay is refused, and the others go on."""
        self._num_bytes += num_bytes
        for payer in self._payers:
            payer.pay(self._num_bytes)

    @contextmanager
    def paid_from(self, budget: Budget) -> Generator[Payer]:
        """For one request, as long as it waits. In an event loop."""
        payer = Payer(budget)
        self._payers.append(payer)
        payer.pay(self._num_bytes)
        try:
            yield payer
        finally:
            self._payers.remove(payer)


class Payer:
    """One of those that wait. ``refused`` is done, with the error, once its budget is exceeded."""

    def __init__(self, budget: Budget) -> None:
        self.refused: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._budget = budget
        self._paid = 0

    def pay(self, num_bytes: int) -> None:
        """For all ``num_bytes`` so far, as far as it has not."""
        due, self._paid = max(0, num_bytes - self._paid), max(num_bytes, self._paid)
        try:
            self._budget.take(due)
        except MediaTooLarge as error:
            if not self.refused.done():
                self.refused.set_result(error)

    def settle(self, num_bytes: int) -> None:
        """All have arrived, from wherever they were. Raises MediaTooLarge."""
        self.pay(num_bytes)
        if self.refused.done():
            raise self.refused.result()
