"""docs/errors.md holds every code, and the code uses no other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsin.core import errors
from opsin.core.errors import Code, ConfigError, OpsinError, default_code
from opsin.core.warnings import WarningCode
from tools.error_table import PAGE, written

SOURCE = Path(errors.__file__).parents[1]
ERRORS = {
    name: error for name, error in vars(errors).items() if isinstance(error, type) and issubclass(error, OpsinError)
}


def _made(tree: ast.AST) -> Iterator[tuple[type[OpsinError], ast.expr | None]]:
    """Every error that a module makes by name, and the code that it gives to it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS:
            code = next((keyword.value for keyword in node.keywords if keyword.arg == "code"), None)
            yield ERRORS[node.func.id], code


def _all_made() -> list[tuple[type[OpsinError], Code]]:
    made: list[tuple[type[OpsinError], Code]] = []
    for file in SOURCE.rglob("*.py"):
        for error, code in _made(ast.parse(file.read_text())):
            if code is None:
                made.append((error, default_code(error)))
            elif ast.unparse(code).startswith("Code."):
                made.append((error, Code[ast.unparse(code).removeprefix("Code.")]))
    return made


def test_the_page_is_what_the_errors_say() -> None:
    page = PAGE.read_text()
    assert page == written(page), "run python tools/error_table.py"
    answered = [code for code in Code if code.error is not ConfigError]
    assert [code for code in (*answered, *WarningCode) if f"| `{code}` |" not in page] == []


def test_no_error_carries_the_code_of_another() -> None:
    made = _all_made()
    assert len(made) > 80
    assert [(error, code) for error, code in made if code.error is not error] == []


@pytest.mark.parametrize("error", ERRORS.values())
def test_every_error_has_a_code_and_the_table_keeps_them_together(error: type[OpsinError]) -> None:
    places = [place for place, code in enumerate(Code) if code.error is error]
    assert places == list(range(places[0], places[0] + len(places)))
