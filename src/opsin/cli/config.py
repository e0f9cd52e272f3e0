"""``opsin config show``: every setting, its value, and who stated it. Secrets stay hidden."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import cast

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from opsin.cli.flags import read
from opsin.settings import Configuration, Settings
from opsin.sources import Setting, settings_of


@dataclass(frozen=True, slots=True)
class Row:
    """One setting. ``value`` is as JSON has it, secrets as stars."""

    setting: str
    value: object
    source: str


def show(args: argparse.Namespace) -> int:
    """Prints the settings that serve would run with; returns the exit status."""
    configuration = read(args)
    configuration.checked()
    shown = list(rows(configuration))
    if args._json:
        print(json.dumps([asdict(row) for row in shown], ensure_ascii=False))
        return 0
    for notice in configuration.notices:
        print(f"opsin: {notice}", file=sys.stderr)
    Console().print(table(shown))
    return 0


def rows(configuration: Configuration, below: str = "") -> Iterator[Row]:
    """The settings whose path starts with ``below``."""
    values = configuration.settings.model_dump(mode="json")
    for setting in settings_of(Settings):
        if setting.path.startswith(below):
            given = configuration.given.get(setting.path)
            yield Row(setting.path, _value(values, setting), given.source if given else "default")


def table(shown: Iterable[Row]) -> Table:
    """For people; what somebody stated is bold."""
    made = Table(Column("setting", no_wrap=True), Column("value", overflow="fold"), Column("source", overflow="fold"))
    for row in shown:
        style = None if row.source == "default" else "bold"
        made.add_row(row.setting, escape(_as_text(row.value)), escape(row.source), style=style)
    return made


def _value(values: object, setting: Setting) -> object:
    """The default where a whole section is absent."""
    for step in setting.path.split("."):
        if not isinstance(values, dict):
            return setting.default
        values = cast("dict[str, object]", values)[step]
    return values


def _as_text(value: object) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
