"""``opsin doctor media``: the policy on pictures in effect, and a line for every attack on it."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterable
from dataclasses import asdict

from rich.console import Console
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
        _print(policy, found.checks)
    return 0 if all(check.passed for check in found.checks) else 1


def _print(policy: Iterable[Row], checks: Iterable[Check]) -> None:
    """A line for each vector, never wrapped, so that they can be searched and compared."""
    console = Console()
    console.print(table(policy))
    for check in checks:
        mark, style = _mark(check)
        line = Text.assemble((f"{mark:8}", style), f"{check.vector}: expected {check.expected}, got {check.got}")
        console.print(line, soft_wrap=True)


def _mark(check: Check) -> tuple[str, str]:
    if not check.is_run:
        return "skipped", "yellow"
    return ("ok", "green") if check.passed else ("PROBLEM", "bold red")
