"""docs/reliability.md shows the fault matrix that is tested."""

from __future__ import annotations

from pathlib import Path

from opsin.gateway.exchange import LAST_WORDS_S
from tests.e2e.faults import MATRIX, Fault, Phase, table

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


def test_the_matrix_is_whole_and_the_page_has_it() -> None:
    assert list(MATRIX) == list(Phase)
    assert all(list(answers) == list(Fault) for answers in MATRIX.values())
    assert f"\n\n{table()}\n\n" in PAGE.read_text()


def test_the_figures_of_the_page_are_those_of_the_code() -> None:
    assert f"cut off {LAST_WORDS_S:g} s later" in PAGE.read_text()
