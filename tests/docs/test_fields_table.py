"""The tables of fields in docs/api.md say what the code says."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from opsin.protocol.fields import PART_TYPES, RULES, Fate, FieldRule, PartTypeRule

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def _rows(rules: Iterable[FieldRule]) -> list[str]:
    """One row for fields in succession of which the same is said."""
    return [f"| {_names(group)} | {said} |" for said, group in groupby(rules, key=_said)]


def _said(rule: FieldRule) -> str:
    if rule.fate is not Fate.REFUSED:
        return rule.note
    passes = ", ".join(f"`{json.dumps(value)}`" for value in (None, *rule.neutral))
    return f"{passes} | {rule.note}"


def _names(rules: Iterable[FieldRule | PartTypeRule]) -> str:
    return ", ".join(f"`{rule.path if isinstance(rule, FieldRule) else rule.name}`" for rule in rules)


def _table(header: str, rows: list[str]) -> str:
    return "\n".join([f"| {header} |", "|---" * (header.count("|") + 1) + "|", *rows])


def tables() -> list[str]:
    """Accepted, ignored, refused, refused types of parts."""
    accepted, ignored, refused = (_rows(rule for rule in RULES if rule.fate is fate) for fate in Fate)
    parts = [
        f"| {_names(group)} | {note} |" for note, group in groupby(PART_TYPES.values(), key=lambda rule: rule.note)
    ]
    return [
        _table("accepted | note", accepted),
        _table("ignored | why", ignored),
        _table("refused | passes | instead, or why", refused),
        _table("refused part | instead, or why", parts),
    ]


def test_the_tables_are_those_of_the_code() -> None:
    section = PAGE.read_text().partition("\n## Fields\n")[2].partition("\n## ")[0]
    blocks = [block.strip() for block in section.split("\n\n")]
    assert [block for block in blocks if block.startswith("|")] == tables()


def test_what_stays_here_is_what_the_page_says() -> None:
    section = PAGE.read_text().partition("\n### Towards an upstream\n")[2].partition("\n## ")[0]
    listed = " ".join(section.strip().split("\n\n")[-1].split())
    assert listed == f"{_names(rule for rule in RULES if rule.stays)}."
