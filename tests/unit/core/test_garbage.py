from __future__ import annotations

import gc

from opsin.core.garbage import settle


def test_what_lives_at_the_start_is_looked_at_by_no_later_collection() -> None:
    old = [object()]
    try:
        settle()
        new = [object()]
        looked_at = gc.get_objects()
        assert any(one is new for one in looked_at)
        assert not any(one is old for one in looked_at)
    finally:
        gc.unfreeze()
