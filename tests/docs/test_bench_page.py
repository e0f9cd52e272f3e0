"""docs/bench.md names every flag and every class of the benchmark."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from opsin.bench.record import Outcome
from opsin.cli import bench

TEXT = (Path(__file__).parents[2] / "docs" / "bench.md").read_text()


def test_every_flag() -> None:
    parser = argparse.ArgumentParser()
    bench.add(parser)
    flags = {flag for flag in re.findall(r"--[a-z-]+", parser.format_help()) if flag != "--help"}
    assert {flag for flag in flags if f"`{flag}" not in TEXT} == set()


def test_every_class() -> None:
    assert {outcome for outcome in Outcome if f"`{outcome}`" not in TEXT} == set()
