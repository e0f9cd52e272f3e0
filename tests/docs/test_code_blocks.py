"""The code blocks of README and docs, run as they stand against a real server on another port."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import pytest

from opsin.cli.main import main, parse

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SERVED = "http://127.0.0.1:8000"


def _blocks(language: str) -> list[tuple[str, str]]:
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.DOTALL | re.MULTILINE)
    return [(page.name, block) for page in PAGES for block in pattern.findall(page.read_text())]


@pytest.mark.parametrize(("page", "block"), _blocks("python"))
def test_python_blocks_run(page: str, block: str, demo_url: str) -> None:
    code = block.replace(SERVED, demo_url)
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def _opsin_words(block: str) -> list[list[str]] | None:
    """Of a block of nothing but opsin's commands."""
    commands = [shlex.split(line, comments=True) for line in block.splitlines() if line.startswith("opsin ")]
    return [words[1:] for words in commands] if len(commands) == len(block.splitlines()) else None


BASH = [(page, block, _opsin_words(block)) for page, block in _blocks("bash")]


@pytest.mark.parametrize("words", [words for _, _, commands in BASH for words in commands or ()], ids=" ".join)
def test_commands_run(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process, which saves each the seconds that its imports take."""
    monkeypatch.chdir(ROOT)
    assert main(words) == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(("page", "block"), [(page, block) for page, block, commands in BASH if commands is None])
def test_bash_blocks_run(page: str, block: str, demo_url: str) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["bash", "-euo", "pipefail", "-c", block.replace(SERVED, demo_url)]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert '"error"' not in result.stdout
    assert result.stdout.strip()


def test_sh_blocks_name_real_commands() -> None:
    """``sh`` blocks start servers or set up machines, so their words are checked instead of run."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for _, block in _blocks("sh"):
        for line in block.splitlines():
            words = line.split("#")[0].split()
            if words[:1] == ["make"]:
                assert words[1] in targets
            elif words:
                assert words[0] == "opsin"
                assert all(word in _help(words[1]) for word in words if word.startswith("--"))


@cache
def _help(command: str) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed), pytest.raises(SystemExit):
        parse([command, "--help"])
    return printed.getvalue()
