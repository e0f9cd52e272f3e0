"""The tables of docs/errors.md, out of `opsin.core.errors` and `.warnings`; run as a script it writes the page.

A test fails while the page holds others.
"""

from __future__ import annotations

import inspect
from itertools import groupby
from pathlib import Path

from opsin.core.errors import Code, ConfigError, OpsinError
from opsin.core.warnings import WarningCode

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
ERRORS = "\n### OpsinError\n"
WARNINGS = "\n| warning | what happened |\n"


def errors() -> str:
    """A section for every error that a request can be answered with, and in it a row for every code."""
    by_error = groupby(Code, key=lambda code: code.error)
    return "".join(_section(error, list(codes)) for error, codes in by_error if error is not ConfigError)


def warnings() -> str:
    """A row for every code."""
    return f"{WARNINGS}|---|---|\n" + "".join(f"| `{code}` | {code.meaning} |\n" for code in WarningCode)


def written(page: str) -> str:
    """The page with its tables replaced: errors up to the next section, warnings up to the end."""
    before, after = page[: page.index(ERRORS)], page[page.index("\n## ", page.index(ERRORS)) : page.index(WARNINGS)]
    return before + errors() + after + warnings()


def _section(error: type[OpsinError], codes: list[Code]) -> str:
    retry = "worth a retry" if error.retryable else "do not retry"
    rows = "".join(f"| `{code}` | {code.remedy} |\n" for code in codes)
    return (
        f"\n### {error.__name__}\n\n{error.status}, `{error.type}`, {retry}. {_meaning(error)}\n\n"
        f"| code | what to do |\n|---|---|\n{rows}"
    )


def _meaning(error: type[OpsinError]) -> str:
    """The first paragraph of its docstring, with Markdown's backticks."""
    return " ".join((inspect.getdoc(error) or "").partition("\n\n")[0].split()).replace("``", "`")


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
