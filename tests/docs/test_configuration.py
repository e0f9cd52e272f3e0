"""docs/configuration.md holds every setting and flag, and its example can be started from."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from opsin.cli.main import parse
from opsin.settings import configuration
from tools.configuration_table import PAGE, written


def test_the_table_is_what_the_settings_say() -> None:
    page = PAGE.read_text()
    assert page == written(page), "run python tools/configuration_table.py"


def test_every_flag_of_serve_is_on_the_page() -> None:
    page = PAGE.read_text()
    command = parse(["serve"])._parser
    assert isinstance(command, argparse.ArgumentParser)
    actions = command._actions  # pyright: ignore[reportPrivateUsage] argparse lists them nowhere else
    shown = [action for action in actions if action.help != argparse.SUPPRESS]
    flags = {flag for action in shown for flag in action.option_strings} - {"-h", "--help"}
    negations = {f"--no-{flag.removeprefix('--')}" for flag in flags}
    assert {flag for flag in flags - negations if f"`{flag}" not in page} == set()


def test_the_example_is_right(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "opsin.toml").write_text(example)
    settings = configuration({}, tmp_path / "opsin.toml").checked()
    assert settings.media.limit_mm_per_prompt.image == 4
