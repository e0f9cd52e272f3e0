from __future__ import annotations

import pytest

from opsin.core.errors import MediaTooLarge
from opsin.media.budget import ByteBudget


def test_the_last_byte_fits_and_the_next_does_not() -> None:
    budget = ByteBudget(10)
    budget.take(4)
    budget.take(6)
    with pytest.raises(MediaTooLarge, match="more than 10 bytes"):
        budget.take(1)
