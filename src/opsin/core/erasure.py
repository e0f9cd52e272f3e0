"""What becomes of data that somebody asked to be deleted, place by place."""

from __future__ import annotations

from enum import StrEnum


class PurgeOutcome(StrEnum):
    """Per tier: what became of the data."""

    ERASED = "erased"
    NONE = "none"  # there was nothing
    UNREACHABLE = "unreachable"  # it may be there still, and cannot be deleted from here
