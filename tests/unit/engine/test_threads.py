from __future__ import annotations

from pathlib import Path

import pytest
import torch

from opsin.engine.local.threads import default_threads


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("max 100000\n", 8), ("200000 100000\n", 2), ("150000 100000\n", 2), ("50000 100000\n", 1),
        ("1600000 100000\n", 8), ("", 8), ("what is this\n", 8),
    ],
)  # fmt: skip
def test_no_more_than_the_container_may_use(told: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    (tmp_path / "cpu.max").write_text(told)
    assert default_threads(tmp_path / "cpu.max") == expected


def test_without_cgroups_it_is_the_choice_of_torch(tmp_path: Path):
    assert default_threads(tmp_path / "nowhere") == torch.get_num_threads()
