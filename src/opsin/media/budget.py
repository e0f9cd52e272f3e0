"""Bytes that the pictures of one request may hold together, beyond those in its body."""

from __future__ import annotations

from opsin.core.errors import MediaTooLarge


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
