"""``opsin doctor media``: the policy on pictures in effect, and a line for every attack on it; fails if one succeeds."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterable
from dataclasses import asdict

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from opsin.cli.config import Row, rows, table
from opsin.cli.flags import read
from opsin.doctor_media import attack
from opsin.media.self_check import Check

_BELOW = "media."


def run(args: argparse.Namespace) -> int:
    """Prints policy and vectors; returns 0 when every one that was run came out as it has to.

    Raises:
        ConfigError: the settings are wrong, so no server has such a policy.
    """
    configuration = read(args)
    settings = configuration.checked()
    with Console(stderr=True).status("attacking …"):
        found = asyncio.run(attack(settings))
    policy = [*rows(configuration, _BELOW), Row("sandbox", found.sandbox, "measured")]
    if args._json:
        vectors = [{**asdict(check), "passed": check.passed} for check in found.checks]
        print(json.dumps({"policy": [asdict(row) for row in policy], "vectors": vectors}, ensure_ascii=False))
    else:
        Console().print(table(policy), _as_table(found.checks), _summary(found.checks), sep="\n")
    return 0 if all(check.passed for check in found.checks) else 1


def _as_table(checks: Iterable[Check]) -> Table:
    made = Table(*(Column(name, overflow="fold") for name in ("vector", "expected", "got")))
    for check in checks:
        made.add_row(*map(Text, (check.vector, check.expected)), Text(check.got, _style(check)))
    return made


def _style(check: Check) -> str:
    if not check.is_run:
        return "yellow"
    return "green" if check.passed else "bold red"


def _summary(checks: tuple[Check, ...]) -> str:
    wrong, skipped = sum(not check.passed for check in checks), sum(not check.is_run for check in checks)
    return f"{len(checks)} vectors: {wrong} not as expected, {skipped} not run"
