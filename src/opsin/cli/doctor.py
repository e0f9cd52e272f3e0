"""``opsin doctor``: what would work on this machine. A line per finding; fails if there is a problem."""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from opsin.cli.flags import read
from opsin.doctor import Finding, Status, examine
from opsin.settings import Configuration

_STYLES = {Status.OK: "green", Status.WARNING: "yellow", Status.PROBLEM: "bold red"}


def run(args: argparse.Namespace) -> int:
    """Prints the findings; returns 0 when no problem is among them."""
    findings = asyncio.run(_findings(read(args)))
    if args._json:
        print(json.dumps([asdict(finding) for finding in findings], ensure_ascii=False))
    else:
        Console().print(_table(findings))
    return 1 if any(finding.status is Status.PROBLEM for finding in findings) else 0


async def _findings(configuration: Configuration) -> list[Finding]:
    with Console(stderr=True).status("looking …"):
        return [finding async for finding in examine(configuration)]


def _table(findings: list[Finding]) -> Table:
    table = Table("area", "status", "finding")
    for finding in findings:
        table.add_row(finding.area, Text(finding.status, _STYLES[finding.status]), Text(finding.text))
    return table
