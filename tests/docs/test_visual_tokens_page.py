"""docs/visual-tokens.md says what the families say."""

from __future__ import annotations

import re

from tools.visual_tokens_page import PAGE, SECTIONS, tables, written


def test_the_page_is_the_families_own() -> None:
    page = PAGE.read_text()
    assert written(page) == page, "run PYTHONPATH=.:src python tools/visual_tokens_page.py"


def test_every_family_has_its_two_tables() -> None:
    text = tables()
    assert re.findall(r"^### (.+)$", text, flags=re.MULTILINE) == [section.title for section in SECTIONS]
    assert text.count("| rule |") == text.count("| `low` | ") / 2 == len(SECTIONS)
