"""ARCHITECTURE.md names only what exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "opsin"
# Words of the trade and of the wire that stand in backticks without being our symbols.
NOT_OURS = {"make check"}


def _defined() -> set[str]:
    names: set[str] = set()
    for file in SOURCE.rglob("*.py"):
        module = file.relative_to(SOURCE.parent).with_suffix("")
        names.update(module.parts)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
    return names


def test_every_symbol_exists() -> None:
    text = re.sub(r"```.*?```", "", (ROOT / "ARCHITECTURE.md").read_text(), flags=re.DOTALL)
    quoted = {span for span in re.findall(r"`([^`\n]+)`", text) if span not in NOT_OURS and ">" not in span}
    symbols = {part for span in quoted if re.fullmatch(r"[A-Za-z_.]+", span) for part in span.split(".")}
    assert len(symbols) > 30
    assert symbols - _defined() == {"data", "DONE"} & symbols


def test_every_package_has_its_row() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for package in (path.parent.name for path in SOURCE.glob("*/__init__.py")):
        assert re.search(rf"`{package}`", text), package
