"""docs/security.md names only tests that exist, one at least for each threat."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from opsin.names import MEDIA

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| threat |")]


@cache
def _known_tests(path: str) -> set[str]:
    """Names of a file's tests, methods as ``Class::name``."""
    names: set[str] = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
    return {name for name in names if "test" in name}


@pytest.mark.parametrize("row", ROWS)
def test_every_row_has_tests_that_exist(row: str) -> None:
    threat, defence, tests = (cell.strip() for cell in row.strip("|").split(" | "))
    assert threat
    assert defence
    named = re.findall(r"`(tests/[^`:]+)::([^`]+)`", tests)
    assert len(named) == tests.count("::") - sum(name.count("::") for _, name in named) > 0
    for path, name in named:
        assert name in _known_tests(path), f"{path}::{name}"


def test_there_are_rows() -> None:
    assert len(ROWS) >= 20


def test_every_flag_is_named() -> None:
    flags = {flag.spellings[0] for flag in MEDIA.flags} - {"--max-remote-images", "--media-ca-file"}
    assert {flag for flag in flags if flag not in PAGE} == set()
