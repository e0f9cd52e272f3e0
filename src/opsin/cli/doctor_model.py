"""``opsin doctor model MODEL``: our counts and pixels beside those of the model's own processor, size by size."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from opsin.cli.flags import read
from opsin.doctor_model import Comparison, Cost, Verdict, compare

_REFUSES = "refuses"
_UNTOLD = "not told"


def run(args: argparse.Namespace) -> int:
    """Prints a line for each size; returns 0 when nothing differs.

    Raises:
        ConfigError: there is nothing to compare with, or no such model.
    """
    settings = read(args).checked()
    with Console(stderr=True).status("rendering …"):
        found = list(compare(settings))
    if args._json:
        rows = [{**asdict(row), "verdict": row.verdict} for row in found]
        print(json.dumps({"model": settings.model, "comparisons": rows}))
    else:
        Console().print(_table(found))
    return 1 if any(row.verdict is Verdict.DIFFERENT for row in found) else 0


def _table(found: Sequence[Comparison]) -> Table:
    table = Table(title="ours / the model's own processor's", title_justify="left")
    for name in ("size", "tiles", "image tokens", "pixels by", "difference", "verdict"):
        table.add_column(name, no_wrap=name == "size")
    for row in found:
        style = "bold red" if row.verdict is Verdict.DIFFERENT else "green"
        sides = zip(_texts(row.ours), _texts(row.theirs), strict=True)
        table.add_row(
            f"{row.size.width}x{row.size.height}",
            *(f"{ours} / {theirs}" for ours, theirs in sides),
            row.renderer,
            "" if row.difference is None else f"{row.difference} of 255",
            Text(row.verdict, style),
        )
    return table


def _texts(cost: Cost | None) -> tuple[str, str]:
    if cost is None:
        return _REFUSES, _REFUSES
    return str(cost.tiles), _UNTOLD if cost.image_tokens is None else str(cost.image_tokens)
