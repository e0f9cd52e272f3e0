"""docs/configuration.md holds every setting and flag, and its example can be started from."""

from __future__ import annotations

import re
from pathlib import Path

from opsin.cli.main import parser
from opsin.settings import configuration
from tools.configuration_table import PAGE, written


def test_the_table_is_what_the_settings_say() -> None:
    page = PAGE.read_text()
    assert page == written(page), "run python tools/configuration_table.py"


def test_every_flag_of_serve_is_on_the_page() -> None:
    page = PAGE.read_text()
    command = next(action for action in parser()._actions if action.dest == "_command")
    assert command.choices is not None
    flags = command.choices["serve"]._option_string_actions  # type: ignore[call-overload]
    negations = {f"--no-{flag.removeprefix('--')}" for flag in flags}
    missing = [flag for flag in flags if f"`{flag}" not in page and flag not in negations | {"-h", "--help"}]
    assert missing == []


def test_the_example_is_right(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "opsin.toml").write_text(example)
    settings = configuration({}, tmp_path / "opsin.toml").checked()
    assert settings.media.limit_mm_per_prompt.image == 4
